"""AReaL-Static-Optimal: the best static split for the initial workload, never changed.

Source: the articles say "asynchronous AReaL with the best static split found for the *initial* workload"; how it was
searched, and the split, are unknown. Our reading: the joint search over all static layouts of equal instances (AReaL
serves with equal ones), on the profile of the initial workload. Asynchrony is a property of the pipeline, and larger
than all other differences together: like every policy it runs under the scenario's pipeline, so that what is compared
is the layout; run it in an `async` scenario for the articles' words to the letter. Length-blind sticky routing. Under
one and the same pipeline this reading coincides with the ablation's `libra-homogeneous`.
"""

from __future__ import annotations

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import PolicyContext, PolicySpec
from libra.planning.uniform import StaticOptimalPlanner


def build(context: PolicyContext) -> ComposedPolicy:
    planner = StaticOptimalPlanner(context.cluster, context.model, heterogeneous=False)
    return ComposedPolicy("areal-static-optimal", planner, LeastLoaded())


SPEC = PolicySpec(
    name="areal-static-optimal",
    summary="Best static layout of equal instances for the initial workload, never changed (paper's baseline)",
    build=build,
)
