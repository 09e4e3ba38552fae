"""best-homogeneous: the rival that any gain from heterogeneous instances has to beat. Not in the paper.

Libra's planner, interval and gate with equal instances only, so that TP-8 everywhere is among its choices; length-blind
sticky routing, which equal instances do not suffer from; no hybrid pool. Follows drift by repartition where the gate
finds it worth the cost; `replan_every = 0` plans once, on the profile.
"""

from __future__ import annotations

from pydantic import Field

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.planning.drift import DriftDetector
from libra.planning.gate import HorizonGate
from libra.planning.uniform import BestHomogeneousPlanner


class BestHomogeneousOptions(Options):
    """`replan_every`: steps between planner runs, Libra's own by default."""

    replan_every: int = Field(5, ge=0)


def build(context: PolicyContext) -> ComposedPolicy:
    options: BestHomogeneousOptions = context.options
    planner = BestHomogeneousPlanner(context.cluster, context.model)
    gate = HorizonGate(planner.estimator)
    policy = ComposedPolicy("best-homogeneous", planner, LeastLoaded(), gate=gate, replan_every=options.replan_every)
    return policy.with_(detector=DriftDetector)


SPEC = PolicySpec(
    name="best-homogeneous",
    summary="Best split and tensor parallelism with equal instances, replanned under drift (not in the paper)",
    build=build,
    options=BestHomogeneousOptions,
)
