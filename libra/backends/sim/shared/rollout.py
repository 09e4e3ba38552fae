"""Trajectories behind one agent-loop process, which starts them and takes their turns' ends one after another."""

from __future__ import annotations

from typing import Any

from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.rollout import Rollout
from libra.backends.sim.shared.cores import SharedClock, Station
from libra.backends.sim.shared.table import Table
from libra.core.records import Trajectory


class SharedRollout(Rollout):
    """As `Rollout`; a start and a turn's end each wait for the agent loop."""

    def __init__(self, table: Table, clock: SharedClock, *args: Any) -> None:
        super().__init__(clock, *args)
        self._table = table
        self._loop = Station("agent loop", clock)
        self._num_starting = 0

    def pump(self) -> None:
        if not self.fleet.any_up:
            return
        while self._held and self.fleet.any_up:
            self._held.popleft()()
        while self._queue and (not self.in_flight_cap or len(self.live) + self._num_starting < self.in_flight_cap):
            self._begin(*self._queue.popleft())

    def _begin(self, record: Trajectory, meant_step: int) -> None:
        self._num_starting += 1

        def ready() -> None:
            self._num_starting -= 1
            self._start(record, meant_step)

        self._loop.serve(self._table.start_s, ready)

    @property
    def num_unstarted(self) -> int:
        return super().num_unstarted + self._num_starting

    def turn_done(self, engine: Instance, request: Request) -> None:
        self._loop.serve(self._table.turn_s, lambda: super(SharedRollout, self).turn_done(engine, request))
