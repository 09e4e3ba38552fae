"""The planner of a job whose engines are there already: the policy only routes among them."""

from __future__ import annotations

from dataclasses import dataclass

from libra.core.plan import Allocation, InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics


@dataclass(frozen=True)
class GivenLayout:
    """Engines of the given sizes, one bucket per size from small to large.

    Without `bounds_tok` the longest context is halved from bucket to bucket: 2,048 tokens and three sizes give 512,
    1,024 and 2,048. The trainer is one device: its real size is the job's own affair.
    """

    instances: tuple[int, ...]
    bounds_tok: tuple[int, ...] = ()

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        sizes = sorted(set(self.instances))
        longest_tok = statistics.run.max_context_tok
        halves = tuple(max(1, longest_tok >> (len(sizes) - 1 - rank)) for rank in range(len(sizes)))
        engines = tuple(InstanceSpec(id_, tp, sizes.index(tp)) for id_, tp in enumerate(self.instances))
        return Plan(TrainLayout(1, 1), engines, self.bounds_tok or halves, note="given")
