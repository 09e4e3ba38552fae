"""Libra: global planner, heterogeneous rollout, C-MLFQ routing and the elastic hybrid pool (paper, system overview)."""

from __future__ import annotations

from pydantic import Field

from libra.core.policy import ComposedPolicy
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.elastic.moves import HybridPool
from libra.planning.drift import DriftDetector
from libra.planning.gate import HorizonGate
from libra.planning.search import JointPlanner
from libra.routing.cmlfq import CMlfq
from libra.routing.prefix_tree import MAX_NODES


class LibraOptions(Options):
    """`replan_every`: steps between planner runs; the paper gives no interval, 5 is that of the authors' released
    48-GPU configuration and less than the telemetry window of 8 steps, so that no step goes unseen. `hybrid_replicas`:
    training replicas' worth of rollout GPUs that may change sides (assumed; the paper gives no pool size).
    `tree_nodes`: most nodes that C-MLFQ's prefix tree remembers, at some 200 bytes each."""

    hybrid_replicas: int = Field(2, ge=0)
    replan_every: int = Field(5, ge=0)
    heterogeneous: bool = True
    tree_nodes: int = Field(MAX_NODES, gt=0)


def build_libra(context: PolicyContext) -> ComposedPolicy:
    """The whole system. Every call makes a policy with a memory of its own."""
    options: LibraOptions = context.options
    planner = JointPlanner(
        context.cluster,
        context.model,
        heterogeneous=options.heterogeneous,
        hybrid_replicas=options.hybrid_replicas,
    )
    return ComposedPolicy(
        name="libra",
        planner=planner,
        router=CMlfq(max_nodes=options.tree_nodes),
        gate=HorizonGate(planner.estimator),
        elastic=HybridPool(),
        replan_every=options.replan_every,
        detector=DriftDetector,
    )


LIBRA = PolicySpec(
    name="libra",
    summary="Joint planner, heterogeneous rollout, C-MLFQ routing and elastic hybrid replicas (the paper's system)",
    build=build_libra,
    options=LibraOptions,
)
