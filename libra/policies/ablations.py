"""Libra with parts taken away, each step of the paper's ablation one difference from the whole composition.

The paper's ladder on R2E-Gym is Static-Uniform, + homogeneous planner, + heterogeneous TP, + C-MLFQ, + elastic = Libra.
The middle three stand here; all of them plan once, on the profile, and never move. What routes a heterogeneous layout
before C-MLFQ is not said: ours is length-blind, the least loaded engine of all.
"""

from __future__ import annotations

from libra.core.policy import ComposedPolicy
from libra.core.registry import PolicyContext, PolicySpec
from libra.planning.search import JointPlanner
from libra.policies.libra import LibraOptions, build_libra
from libra.routing.least_loaded import LeastLoaded
from libra.routing.prefix_tree import MAX_NODES


def without_elastic(context: PolicyContext, name: str) -> ComposedPolicy:
    """Libra less the hybrid pool and all replanning; its planner stays, without replicas to mark as elastic."""
    options = LibraOptions(hybrid_replicas=0, replan_every=0, tree_nodes=MAX_NODES)
    whole = build_libra(PolicyContext(context.cluster, context.model, options))
    return whole.without("gate").without("elastic").with_(name=name)


def build_cmlfq(context: PolicyContext) -> ComposedPolicy:
    return without_elastic(context, "libra-cmlfq")


def build_hetero(context: PolicyContext) -> ComposedPolicy:
    return without_elastic(context, "libra-hetero").with_(router=LeastLoaded())


def build_homogeneous(context: PolicyContext) -> ComposedPolicy:
    planner = JointPlanner(context.cluster, context.model, heterogeneous=False)
    return build_hetero(context).with_(name="libra-homogeneous", planner=planner)


ABLATIONS = (
    PolicySpec(
        "libra-homogeneous",
        "Ablation: Libra's planner with equal instances, planned once, length-blind routing",
        build_homogeneous,
    ),
    PolicySpec(
        "libra-hetero",
        "Ablation: heterogeneous instances, planned once, length-blind routing",
        build_hetero,
    ),
    PolicySpec(
        "libra-cmlfq",
        "Ablation: heterogeneous instances, planned once, C-MLFQ routing, nothing elastic",
        build_cmlfq,
    ),
)
