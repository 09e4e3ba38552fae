"""Libra inside verl, through verl's own extension points; docs/verl.md is the user's guide.

`plugin` is loaded by verl in every process; `router` holds the policy in one Ray actor; `agent_loop` tells it when
trajectories start, call tools and end; `replicas` and `trainer` bring heterogeneous engines and safe points.
"""
