"""An engine that shares the machine's cores: its steps take longer while others work."""

from __future__ import annotations

from typing import Any

from libra.backends.sim.instance import Instance
from libra.backends.sim.options import SimOptions
from libra.backends.sim.shared.cores import SharedClock
from libra.backends.sim.shared.truth import SharedStepModel

MAX_STEPS = 4
"""Of a segment, which keeps the slowdown that it started with."""


class SharedInstance(Instance):
    """`model` is the engine's own, since it holds the present slowdown."""

    model: SharedStepModel

    def __init__(
        self, instance_id: int, model: SharedStepModel, options: SimOptions, clock: SharedClock, on_done: Any
    ) -> None:
        super().__init__(instance_id, model, options, clock.now, clock.at, on_done)
        self._cores = clock.cores

    def _start_segment(self, now: float) -> None:
        self._cores.enter(self)
        self.model.slowdown = self._cores.slowdown
        super()._start_segment(now)
        self._cut_segment(self._steps + MAX_STEPS)

    def _boundary(self, epoch: int) -> None:
        super()._boundary(epoch)
        if not self._segment_steps:
            self._cores.leave(self)
