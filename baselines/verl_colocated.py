"""verl-Colocated: rollout and training share all GPUs, one after the other, on-policy.

Source: the articles say "time-share the same GPUs" and no more; parallelism and synchronization are unknown. Our
reading: verl's hybrid engine; rollout on equal instances over all GPUs, TP-1 like our reading of Static-Uniform, so
that the two differ in the pipeline alone; training at TP-4 over all GPUs; length-blind sticky routing. Never replans.
"""

from __future__ import annotations

from pydantic import Field

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.planning.uniform import UniformPlanner


class ColocatedOptions(Options):
    """`tp`: tensor-parallel size of rollout instances (assumed 1); `train_tp` that of training (assumed 4)."""

    tp: int = Field(1, ge=1)
    train_tp: int = Field(4, ge=1)


def build(context: PolicyContext) -> ComposedPolicy:
    options: ColocatedOptions = context.options
    planner = UniformPlanner(context.cluster, context.model, tp=options.tp, train_tp=options.train_tp, colocated=True)
    return ComposedPolicy("verl-colocated", planner, LeastLoaded())


SPEC = PolicySpec(
    name="verl-colocated",
    summary="Rollout and training take turns on all GPUs, on-policy (paper's baseline)",
    build=build,
    options=ColocatedOptions,
    pipeline="colocated",
)
