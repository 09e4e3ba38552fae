"""Laws that a run with `sim.check=true` is held to while it runs; a broken one ends the cell with what and where.

Conservation of trajectories and tokens, causality, the staleness bound and the GPUs of the pools; `checked_cache` holds
each engine to its own. That time never runs backwards, that runs repeat and that twice the speed halves the time are
property tests (tests/property).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libra.backends.sim.checked_cache import ensure
from libra.backends.sim.rollout import Live, Rollout
from libra.core.events import PipelineSpec
from libra.results.schemas import StepRow


@dataclass
class RunChecks:
    """What the engine reports, and the laws about it."""

    spec: PipelineSpec
    num_gpus: int
    num_launched: int = 0

    def launched(self, num_trajectories: int) -> None:
        self.num_launched += num_trajectories

    def trains(self, batch: Sequence[Live], start_s: float) -> None:
        """Nothing is trained before it has ended."""
        for live in batch:
            ensure(live.end_s <= start_s, f"trained at {start_s} s, ended at {live.end_s} s", f"trajectory {live.id}")

    def step(self, batch: Sequence[Live], row: StepRow, rollout: Rollout) -> None:
        """A step has closed."""
        where = f"step {row.step}"
        waiting = len(rollout.live) + rollout.num_unstarted
        ensure(self.num_launched == rollout.num_ended + waiting, "trajectories launched = ended + live + queued", where)
        bound = {"colocated": 0, "barrier": 1}.get(self.spec.kind, self.spec.staleness)
        ensure(row.max_staleness <= bound, f"staleness {row.max_staleness} of at most {bound}", where)
        held_gpu_s = row.rollout_pool_gpu_s + row.train_pool_gpu_s
        room_gpu_s = self.num_gpus * (row.end_s - row.start_s) * (2 if self.spec.kind == "colocated" else 1)
        ensure(held_gpu_s <= room_gpu_s * (1 + 1e-9), f"{held_gpu_s} GPU s of {room_gpu_s}", where)
        for live in batch:
            self._trajectory(live)

    @staticmethod
    def _trajectory(live: Live) -> None:
        record, where = live.record, f"trajectory {live.id}"
        tool_s = sum(turn.tool.latency_s or 0.0 for turn in record.turns if turn.tool)
        ensure(live.context_tok == record.total_tok, f"{live.context_tok} tokens of {record.total_tok}", where)
        ensure(live.turn == len(record.turns), f"{live.turn} turns of {len(record.turns)}", where)
        ensure(live.start_s + tool_s <= live.end_s * (1 + 1e-9), f"ended before its tools' {tool_s} s", where)
        ensure(live.version_start <= live.version_end, "policy versions in order", where)
