"""static-tp1/2/4/8: equal rollout instances of one size beside a fixed training share, for the tensor-parallel study.

Source: the paper's study runs 8 x TP-1 to 1 x TP-8 on 8 GPUs by length bin; it gives two of its cells and says nothing
of training. Here training gets its best layout on `num_train_gpus` and rollout the rest. Length-blind sticky routing.
"""

from __future__ import annotations

from pydantic import Field

from baselines.routers.least_loaded import LeastLoaded
from libra.core.policy import ComposedPolicy
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.planning.uniform import FixedPlanner


class StaticTpOptions(Options):
    """`num_train_gpus` 16 leaves 32 of 48 for rollout, the split of the authors' released configuration."""

    num_train_gpus: int = Field(16, ge=1)


def static_tp(tp: int) -> PolicySpec:
    """Spec of one tensor-parallel size."""

    def build(context: PolicyContext) -> ComposedPolicy:
        planner = FixedPlanner(context.cluster, context.model, tp=tp, num_train_gpus=context.options.num_train_gpus)
        return ComposedPolicy(f"static-tp{tp}", planner, LeastLoaded())

    summary = f"Equal TP-{tp} rollout instances beside a fixed number of training GPUs (tensor-parallel study)"
    return PolicySpec(f"static-tp{tp}", summary, build, options=StaticTpOptions)


STATIC_TP = tuple(static_tp(tp) for tp in (1, 2, 4, 8))
