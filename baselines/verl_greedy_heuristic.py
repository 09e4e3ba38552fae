"""verl-Greedy-Heuristic: a split chosen by a manual greedy heuristic.

Source: the articles call it a "manual greedy heuristic" and do not say what it is. Our reading: start even with the
smallest tensor parallelism that fits, after each of the first five steps move one node (8 GPUs) toward the slower
stage, then freeze. Length-blind sticky routing; every change is a repartition, paid for like anybody's.
"""

from __future__ import annotations

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import PolicyContext, PolicySpec
from libra.planning.gate import AcceptChange
from libra.planning.uniform import GreedyPlanner


def build(context: PolicyContext) -> ComposedPolicy:
    planner = GreedyPlanner(context.cluster, context.model)
    # The planner itself freezes after five steps, by proposing what is there.
    return ComposedPolicy("verl-greedy-heuristic", planner, LeastLoaded(), gate=AcceptChange(), replan_every=1)


SPEC = PolicySpec(
    name="verl-greedy-heuristic",
    summary="Moves a node toward the slower stage during the first five steps, then freezes (our reading)",
    build=build,
)
