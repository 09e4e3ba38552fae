"""Who has which GPU: the plan that a planner wants, the allocation that is observed, and the moves between them."""

from __future__ import annotations

from typing import Literal

import msgspec

InstanceState = Literal["up", "starting", "draining", "training", "down"]


class TrainLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parallelism of one training job. Expert parallelism lives inside data parallelism (paper, Fig. 4).

    A GPU count is `tp * pp * cp * dp`; `micro_batch_tok` is the packed token budget of one micro-batch. `vpp` is the
    number of model chunks on each pipeline stage (interleaved schedule).
    """

    tp: int
    dp: int
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch_tok: int = 40960
    recompute: bool = True
    vpp: int = 1

    @property
    def replica_gpus(self) -> int:
        """GPUs of one complete data-parallel replica: the unit that the elastic pool moves."""
        return self.tp * self.pp * self.cp

    @property
    def num_gpus(self) -> int:
        return self.replica_gpus * self.dp


class InstanceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rollout engine. `bucket` indexes `Plan.bounds_tok`; `hybrid` names the elastic replica that owns its GPUs."""

    id: int
    tp: int
    bucket: int = 0
    hybrid: int | None = None


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the planner expects of a plan, seconds per training step; NaN-free, 0 where not estimated."""

    rollout_s: float = 0.0
    train_s: float = 0.0
    step_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A desired layout. `bounds_tok[b]` is the largest total length that bucket `b` serves, ascending.

    `train` is the *core* training job; hybrid replicas in `hybrid_training` add one data-parallel replica each
    while they train, and serve the instances that carry their number while they do not. A colocated plan has
    instances on the same GPUs as training (`colocated`), so the two GPU counts overlap instead of adding up.
    """

    train: TrainLayout
    instances: tuple[InstanceSpec, ...]
    bounds_tok: tuple[int, ...]
    hybrid_training: tuple[int, ...] = ()
    colocated: bool = False
    expected: Estimate = Estimate()
    note: str = ""

    @property
    def rollout_gpus(self) -> int:
        """GPUs that serve rollout when every hybrid replica does."""
        return sum(i.tp for i in self.instances)

    @property
    def num_gpus(self) -> int:
        if self.colocated:
            return max(self.train.num_gpus, self.rollout_gpus)
        return self.train.num_gpus + self.rollout_gpus

    @property
    def hybrid_replicas(self) -> tuple[int, ...]:
        return tuple(sorted({i.hybrid for i in self.instances if i.hybrid is not None}))


def problem_in(plan: Plan, max_context_tok: int) -> str | None:
    """What makes a plan impossible on any cluster, in words; None for a sound one."""
    train, num_buckets = plan.train, len(plan.bounds_tok)
    ids = [engine.id for engine in plan.instances]
    lent = [engine for engine in plan.instances if engine.hybrid in plan.hybrid_training]
    odd = [
        hybrid
        for hybrid in plan.hybrid_replicas
        if sum(engine.tp for engine in plan.instances if engine.hybrid == hybrid) != train.replica_gpus
    ]
    problems = (
        (not ids, "it has no rollout instance"),
        (len(set(ids)) < len(ids), "two of its instances share an id"),
        (min(train.tp, train.dp, train.pp, train.cp, train.ep, train.vpp) < 1, "a degree of parallelism is below 1"),
        (train.micro_batch_tok < 1, "its micro-batches hold no token"),
        (list(plan.bounds_tok) != sorted(set(plan.bounds_tok)), "its bounds do not ascend"),
        (not plan.bounds_tok or plan.bounds_tok[-1] < max_context_tok,
         f"its last bound is below the longest context, {max_context_tok} tokens"),
        (any(not 0 <= engine.bucket < num_buckets for engine in plan.instances), "an instance serves no bucket of it"),
        (not set(plan.hybrid_training) <= set(plan.hybrid_replicas), "a hybrid replica that trains owns no instance"),
        (bool(odd), f"hybrid replicas {odd} are no whole training replicas of {train.replica_gpus} GPUs"),
        (bool(ids) and len(lent) == len(ids), "all its instances train: none rolls out"),
    )  # fmt: skip
    return next((text for wrong, text in problems if wrong), None)


class InstanceStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """Observed state. `draining` finishes its turns but takes none; `training` is lent to the trainer."""

    id: int
    tp: int
    bucket: int
    state: InstanceState
    hybrid: int | None = None


class Allocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is really there. `train_dp` counts core and joined hybrid replicas."""

    train: TrainLayout | None
    train_dp: int
    instances: tuple[InstanceStatus, ...]
    bounds_tok: tuple[int, ...]
    hybrid_training: tuple[int, ...] = ()
    colocated: bool = False

    def up(self) -> tuple[InstanceStatus, ...]:
        """Instances that take requests now."""
        return tuple(i for i in self.instances if i.state == "up")


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """One hybrid replica changes sides at the next safe point."""

    hybrid: int
    to: Literal["train", "rollout"]
