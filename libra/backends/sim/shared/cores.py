"""Cores that processes share: each works on one core, slower by as much as there are more processes than cores.

A piece of work keeps the speed that it started with; so pieces are short, and long work is cut into slices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

from libra.backends.sim.clock import Clock

SLICE_S = 0.02
"""Of long work: short against a training step of seconds, long against an engine step's milliseconds."""


class Cores:
    """Who works now. `num` may be a fraction: what is left of a core beside the machine's own business."""

    def __init__(self, num: float) -> None:
        self.num = num
        self._busy: set[Hashable] = set()

    def enter(self, who: Hashable) -> None:
        self._busy.add(who)

    def leave(self, who: Hashable) -> None:
        self._busy.discard(who)

    @property
    def slowdown(self) -> float:
        """Equal shares, as Linux's scheduler gives to processes of one priority."""
        return max(1.0, len(self._busy) / self.num)


class SharedClock(Clock):
    """The run's clock, with the machine's cores."""

    def __init__(self, num_cores: float) -> None:
        super().__init__()
        self.cores = Cores(num_cores)

    def work(self, who: Hashable, seconds: float, done: Callable[[], None]) -> None:
        """`done` is called when `who` has had `seconds` of a core."""
        self.cores.enter(who)
        piece_s = min(seconds, SLICE_S)

        def over() -> None:
            if seconds > piece_s:
                self.work(who, seconds - piece_s, done)
            else:
                self.cores.leave(who)
                done()

        self.at(self.now_s + piece_s * self.cores.slowdown, over)


class Station:
    """A process that serves one piece of work after another, first come first served."""

    def __init__(self, name: str, clock: SharedClock) -> None:
        self.name, self._clock = name, clock
        self._waiting: deque[tuple[float, Callable[[], None]]] = deque()
        self._busy = False

    def serve(self, seconds: float, done: Callable[[], None]) -> None:
        self._waiting.append((seconds, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        seconds, done = self._waiting.popleft()
        self._busy = True

        def over() -> None:
            self._busy = False
            done()
            if self._waiting and not self._busy:
                self._next()

        self._clock.work(self.name, seconds, over)
