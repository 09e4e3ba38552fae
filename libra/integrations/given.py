"""The planner of a job whose engines are there already: the policy only routes among them."""

from __future__ import annotations

from dataclasses import dataclass

from libra.core.plan import Allocation, InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics


@dataclass(frozen=True)
class GivenLayout:
    """Engines of the given sizes, one bucket per size from small to large.

    Without `bounds_tok` the longest context is halved from bucket to bucket: 2,048 tokens and three sizes give 512,
    1,024 and 2,048. Bounds of another number than the sizes share the engines out evenly, smaller ones to shorter
    buckets: verl starts engines of one size. The trainer is one device: its real size is the job's own affair.
    """

    instances: tuple[int, ...]
    bounds_tok: tuple[int, ...] = ()

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        sizes = sorted(set(self.instances))
        longest_tok = statistics.run.max_context_tok
        halves = tuple(max(1, longest_tok >> (len(sizes) - 1 - rank)) for rank in range(len(sizes)))
        bounds_tok = self.bounds_tok or halves
        if len(bounds_tok) == len(sizes):
            buckets = [sizes.index(tp) for tp in self.instances]
        else:
            buckets = self._shared_out(len(bounds_tok))
        engines = tuple(InstanceSpec(id_, tp, bucket) for id_, (tp, bucket) in
                        enumerate(zip(self.instances, buckets, strict=True)))  # fmt: skip
        return Plan(TrainLayout(1, 1), engines, bounds_tok, note="given")

    def _shared_out(self, num_buckets: int) -> list[int]:
        by_size = sorted(range(len(self.instances)), key=lambda id_: (self.instances[id_], id_))
        return [by_size.index(id_) * num_buckets // len(by_size) for id_ in range(len(by_size))]
