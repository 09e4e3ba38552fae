"""A fully asynchronous job as a fluid: what verl's trainer asks a dynamic schedule policy, and what follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from libra.planning.lending import Cycle


def played_s(cycle: Cycle, there: float, start_at: float | None) -> float:
    """Seconds of one cycle, part by part: lent until `start_at` samples are there, or (None) not lent."""
    now_s, have, used = 0.0, there, 0.0
    if start_at is not None:
        now_s, have = cycle.enter_s, have + cycle.alone_rate * cycle.enter_s
        lent_s = max(0.0, (start_at - have) / (cycle.alone_rate + cycle.lent_rate))
        now_s, have = now_s + lent_s + cycle.leave_s, max(have, start_at) + cycle.alone_rate * cycle.leave_s
    for _ in range(cycle.parts):
        used += cycle.samples / cycle.parts
        wait_s = max(0.0, (used - have) / cycle.alone_rate) if used > have else 0.0
        now_s += wait_s + cycle.train_s / cycle.parts
        have += cycle.alone_rate * (wait_s + cycle.train_s / cycle.parts)
    return now_s


@dataclass
class Plant:
    """Runs cycles one after another; `validate_s` passes between a sync and the next training."""

    truth: Cycle
    validate_s: float = 0.0
    now_s: float = 0.0
    produced: float = 0.0
    used: float = 0.0
    lent: list[bool] = field(default_factory=list)
    cycles_s: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def generate(self, seconds: float, *, lent: bool = False) -> None:
        self.now_s += seconds
        self.produced += seconds * (self.truth.alone_rate + self.truth.lent_rate * lent)

    def part(self) -> tuple[float, int]:
        """One collection and its training; the wait, and how many samples were waited for."""
        missing = max(0.0, self.used + self.truth.samples / self.truth.parts - self.produced)
        wait_s = missing / self.truth.alone_rate if missing else 0.0
        self.generate(wait_s)
        self.used += self.truth.samples / self.truth.parts
        self.generate(self.truth.train_s / self.truth.parts)
        return wait_s, round(missing)
