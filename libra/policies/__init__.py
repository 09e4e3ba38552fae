"""Libra as a composition of planner, router and elastic pool, and its ablations."""
