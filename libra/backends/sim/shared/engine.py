"""The simulator where processes share cores: training is slowed too, and steps have a gap between them.

What orders the stages is the simulator's own pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libra.backends.sim.engine import Simulator
from libra.backends.sim.pipelines import Done
from libra.backends.sim.rollout import Live
from libra.backends.sim.shared.cores import SharedClock
from libra.backends.sim.shared.table import read_table
from libra.backends.sim.shared.truth import SharedTruth
from libra.backends.sim.truth import Truth


class SharedSimulator(Simulator):
    """`options.table` names the machine's table."""

    clock: SharedClock

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ready_s = 0.0
        """When the driver has done what it does between two steps."""

    def _make_truth(self) -> Truth:
        self._table = read_table(self.options.table)
        return SharedTruth(self.cluster, self.model, self._table)

    def launch(self, first_group: int, num_groups: int) -> None:
        self.clock.at(self._ready_s, lambda: super(SharedSimulator, self).launch(first_group, num_groups))

    def train(self, batch: Sequence[Live], done: Done) -> None:
        def start(start_s: float) -> None:
            layout = self.fleet.train_layout()
            work_s = self.truth.train_step_s(layout, [live.context_tok for live in batch]).total_s
            self._books.layout, self._books.version = layout, self.version
            self.clock.at(max(start_s, self._ready_s), lambda: self._work(work_s, done))

        self.fleet.when_trainer_ready(start)

    def _work(self, work_s: float, done: Done) -> None:
        began_s = self.clock.now_s

        def trained() -> None:
            self._books.train_s = self.clock.now_s - began_s
            done()

        self.clock.work("trainer", work_s, trained)

    def close_step(self, batch: Sequence[Live]) -> None:
        self._ready_s = self.clock.now_s + self._table.between_s
        super().close_step(batch)
