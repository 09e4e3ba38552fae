"""Simulated time: one heap of callbacks, first come first served at equal times."""

from __future__ import annotations

import heapq
from collections.abc import Callable


class Clock:
    """`now_s` only moves forward, and only inside `run`."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> float:
        return self.now_s

    def at(self, t_s: float, callback: Callable[[], None]) -> None:
        """Call back at `t_s`, or at once (after what is due now) when that is past."""
        self._count += 1
        heapq.heappush(self._heap, (max(t_s, self.now_s), self._count, callback))

    def run(self, until: Callable[[], bool]) -> bool:
        """Run callbacks until `until()` holds; False when nothing is left to do before that."""
        heap = self._heap
        while not until():
            if not heap:
                return False
            self.now_s, _, callback = heapq.heappop(heap)
            self.num_events += 1
            callback()
        return True
