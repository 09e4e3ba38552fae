"""Should a trainer's GPUs generate between updates, and for how long? Closed forms of one cycle; samples and seconds.

A cycle trains `samples` in `parts` equal collections, each as soon as it is there. While the trainer's GPUs are lent
they add to the generation of the pool that stands alone, and training waits. This is what verl's hybrid replicas do.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from libra.cost.calibration import SMOOTHING

MIN_GAIN_SHARE = 0.05
"""Lending must shorten the cycle by this much: the gate's hysteresis (the authors' released configuration)."""
SURPRISE = 0.2
"""Lent cycles that take this share more or less than expected, in the moving mean, mean that the rates have changed:
a third of the three-fold shifts of length that training brings, four times the spread of a step (assumed)."""


class Cycle(msgspec.Struct, frozen=True):
    """Rates in samples a second; `lent_rate` comes on top of `alone_rate`. `enter_s` and `leave_s` are the switches."""

    samples: int
    parts: int
    train_s: float
    alone_rate: float
    lent_rate: float = 0.0
    enter_s: float = 0.0
    leave_s: float = 0.0


class Seen(msgspec.Struct, frozen=True):
    """A cycle that ended: `waited_s` for samples while nothing was lent, `other_s` neither trained nor waited."""

    duration_s: float
    produced: int
    waited_s: float
    other_s: float
    was_lent: bool
    enter_s: float = 0.0
    leave_s: float = 0.0


def samples_to_start(cycle: Cycle) -> float:
    """Samples that are there when lending best ends: with fewer, a later part waits at the lower rate.

    Part k of K starts `leave_s + (k - 1) train_s / K` later and needs `k samples / K`: linear in k, so an end binds.
    """
    share, part_s = cycle.samples / cycle.parts, cycle.train_s / cycle.parts
    first = share - cycle.alone_rate * cycle.leave_s
    last = cycle.samples - cycle.alone_rate * (cycle.leave_s + (cycle.parts - 1) * part_s)
    return max(0.0, first, last)


def lent_s(cycle: Cycle, there: float) -> float:
    """Seconds to lend after `enter_s`, with `there` samples at the start of the cycle."""
    missing = samples_to_start(cycle) - there - cycle.alone_rate * cycle.enter_s
    rate = cycle.alone_rate + cycle.lent_rate
    return max(0.0, missing / rate) if rate > 0 else float("inf")


def cycle_s(cycle: Cycle, there: float, *, lends: bool) -> float:
    """Seconds until the cycle's samples are trained; inf when they never come."""
    if lends:
        return cycle.enter_s + lent_s(cycle, there) + cycle.leave_s + cycle.train_s
    share, part_s = cycle.samples / cycle.parts, cycle.train_s / cycle.parts
    ends = [cycle.train_s]
    for missing, rest_s in ((share - there, cycle.train_s), (cycle.samples - there, part_s)):
        if missing > 0:
            ends.append((missing / cycle.alone_rate if cycle.alone_rate > 0 else float("inf")) + rest_s)
    return max(ends)


@dataclass
class Lender:
    """Learns a cycle's rates from those that ended, and answers before each one."""

    samples: int
    parts: int
    _train_s: float | None = field(default=None, init=False)
    _alone_rate: float = field(default=0.0, init=False)
    _lent_rate: float | None = field(default=None, init=False)
    _enter_s: float = field(default=0.0, init=False)
    _leave_s: float = field(default=0.0, init=False)
    _surprise: float = field(default=0.0, init=False)
    _expected_s: float | None = field(default=None, init=False)

    def learn(self, seen: Seen) -> None:
        """A cycle without lending shows training and the pool alone; one with it shows, knowing those, what it adds."""
        if seen.duration_s <= 0:
            return
        if seen.was_lent and self._has_changed(seen):
            self._train_s = self._lent_rate = None
        elif not seen.was_lent:
            first = self._train_s is None
            train_s = max(0.0, seen.duration_s - seen.other_s - seen.waited_s)
            self._train_s = train_s if first else _mean(self._train_s or 0.0, train_s)
            rate = seen.produced / seen.duration_s
            self._alone_rate = rate if first else _mean(self._alone_rate, rate)
        elif self._train_s is not None:
            self._enter_s, self._leave_s = seen.enter_s, seen.leave_s
            lent_s = seen.duration_s - seen.waited_s - seen.enter_s - seen.leave_s - self._train_s
            if lent_s > 0:
                rate = max(0.0, (seen.produced - self._alone_rate * seen.duration_s) / lent_s)
                self._lent_rate = rate if self._lent_rate is None else _mean(self._lent_rate, rate)

    def _has_changed(self, seen: Seen) -> bool:
        """Whether lent cycles are not what the rates say, so that all must be seen anew."""
        if self._expected_s is None:
            return False
        self._surprise = _mean(self._surprise, (seen.duration_s - seen.other_s) / self._expected_s - 1)
        if abs(self._surprise) < SURPRISE:
            return False
        self._surprise = 0.0
        return True

    @property
    def cycle(self) -> Cycle | None:
        """What is expected of the next one; None until both kinds have been seen."""
        if self._train_s is None or self._lent_rate is None:
            return None
        return Cycle(
            self.samples, self.parts, self._train_s, self._alone_rate, self._lent_rate, self._enter_s, self._leave_s
        )

    def should_lend(self, there: float) -> bool:
        """Whether the next cycle ends earlier so. The first cycle is not lent and the second is, to see both."""
        cycle, self._expected_s = self.cycle, None
        if cycle is None:
            return self._train_s is not None
        self._expected_s = cycle_s(cycle, there, lends=True)
        return self._expected_s < cycle_s(cycle, there, lends=False) * (1 - MIN_GAIN_SHARE)

    def samples_to_start(self) -> float:
        """As the function; a whole cycle's while the rates are unknown."""
        cycle = self.cycle
        return samples_to_start(cycle) if cycle else float(self.samples)


def _mean(old: float, new: float) -> float:
    return old + SMOOTHING * (new - old)
