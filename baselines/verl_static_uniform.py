"""verl-Static-Uniform: the GPUs split evenly between training and rollout, fixed for the whole run.

Source: the articles say "split evenly, fixed"; 24/24 of 48 follows, and the authors' later control is called "static
24/24". No source gives the rollout's tensor parallelism. Our reading is TP-1: it is the only one that leaves room for
the paper's gain of 1.8 over this baseline; TP-2 (`tp = 2`) is to be shown beside it. Training TP-4, length-blind
sticky routing. Never replans.
"""

from __future__ import annotations

from pydantic import Field

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.planning.uniform import UniformPlanner


class StaticUniformOptions(Options):
    """`tp`, `train_tp`: tensor-parallel sizes of rollout and training (assumed); `train_share`: of the GPUs."""

    tp: int = Field(1, ge=1)
    train_tp: int = Field(4, ge=1)
    train_share: float = Field(0.5, gt=0, lt=1)


def build(context: PolicyContext) -> ComposedPolicy:
    options: StaticUniformOptions = context.options
    planner = UniformPlanner(
        context.cluster,
        context.model,
        tp=options.tp,
        train_share=options.train_share,
        train_tp=options.train_tp,
    )
    return ComposedPolicy("verl-static-uniform", planner, LeastLoaded())


SPEC = PolicySpec(
    name="verl-static-uniform",
    summary="Even split between training and rollout, equal TP-1 instances, never changed (paper's baseline)",
    build=build,
    options=StaticUniformOptions,
)
