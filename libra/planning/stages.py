"""The split from bare stage times: what a step's two measured times say about other splits of the same GPUs.

No lengths, no model, no cluster file: a stage on `k` times the GPUs takes `serial + (1 - serial) / k` of its time
(Amdahl), with a serial share that two numbers cannot tell. So every answer is an interval over `SERIAL_SHARES` of both
stages, and a gain whose interval includes zero is no reason to move.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, isfinite
from typing import Literal

from libra.core.errors import CapacityError, ConfigError

Pipeline = Literal["serial", "overlapped"]
SERIAL_SHARES = (0.0, 0.3)
"""From perfect scaling, which verl's published tables show from 32 to 64 GPUs for both stages, to 0.65 of the time on
twice the GPUs. From 64 to 128 theirs scale worse than that, so the interval is no bound (chosen, not fitted)."""
NODE_GPUS = 8


@dataclass(frozen=True)
class Stages:
    """Seconds of one step as measured, and on how many GPUs.

    `train_s` is all that the trainer does with a batch (log-probabilities, update). `longest_s` is the longest
    trajectory, which no number of GPUs shortens (0: unknown). Colocated: both counts are the same GPUs.
    """

    rollout_s: float
    train_s: float
    rollout_gpus: int
    train_gpus: int
    colocated: bool = False
    sync_s: float = 0.0
    longest_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError` for times and counts that no step has."""
        for name in ("rollout_s", "train_s"):
            _check(name, getattr(self, name), isfinite(getattr(self, name)) and getattr(self, name) > 0, "above 0")
        _check("sync_s", self.sync_s, isfinite(self.sync_s) and self.sync_s >= 0, "0 or more")
        fits = isfinite(self.longest_s) and 0 <= self.longest_s <= self.rollout_s
        _check("longest_s", self.longest_s, fits, f"0 to the rollout time, {self.rollout_s:g}")
        for name in ("rollout_gpus", "train_gpus"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "1 or more")
        if self.colocated and self.rollout_gpus != self.train_gpus:
            raise ConfigError("colocated stages have the same GPUs", where="stages",
                              value=f"{self.rollout_gpus}:{self.train_gpus}")  # fmt: skip

    @property
    def num_gpus(self) -> int:
        return self.rollout_gpus if self.colocated else self.rollout_gpus + self.train_gpus

    def rollout_on(self, num_gpus: int, serial: float) -> float:
        """Seconds on `num_gpus` for a serial share."""
        return max(self.longest_s, _scaled(self.rollout_s, self.rollout_gpus / num_gpus, serial))

    def train_on(self, num_gpus: int, serial: float) -> float:
        return _scaled(self.train_s, self.train_gpus / num_gpus, serial)


def _check(name: str, value: float, is_right: bool, allowed: str) -> None:
    if not is_right:
        raise ConfigError("no step has such a figure", where=f"stages: {name}", value=value, allowed=(allowed,))


def _scaled(time_s: float, ratio: float, serial: float) -> float:
    return time_s * (serial + (1 - serial) * ratio)


@dataclass(frozen=True)
class Interval:
    """Least and most over the serial shares."""

    low: float
    high: float


@dataclass(frozen=True)
class Option:
    """One way to use the GPUs; `rollout_gpus` and `train_gpus` are the same ones when colocated.

    Times and idle shares (of a pool's time in a step) are at perfect scaling. `step` and `gain`, the share of today's
    step that it saves, are intervals over the serial shares.
    """

    rollout_gpus: int
    train_gpus: int
    colocated: bool
    rollout_s: float
    train_s: float
    step_s: float
    rollout_idle: float
    train_idle: float
    step: Interval
    gain: Interval


@dataclass(frozen=True)
class Advice:
    """`options` ascend by step time at perfect scaling; `best` has the largest gain that is sure, and is today's when
    no other has one. No split is faster than `bound_s` at perfect scaling, however finely it moves the same GPUs."""

    today: Option
    options: tuple[Option, ...]
    best: Option
    bound_s: float
    unit: int

    @property
    def gap(self) -> float:
        """By what share the best split may miss the optimum."""
        return self.best.step_s / self.bound_s - 1

    def pays_back_after(self, move_s: float) -> int | None:
        """Steps until a move that stalls the job for `move_s` is paid back at the least gain; None: never for sure."""
        saved_s = self.best.gain.low * self.today.step_s
        return ceil(move_s / saved_s) if saved_s > 0 else None


def advise(stages: Stages, pipeline: Pipeline = "overlapped", unit: int | None = None) -> Advice:
    """Compare overlapped splits in steps of `unit` GPUs, and both stages on all GPUs one after the other, with today.

    `pipeline` is today's: an overlapped one trains on a batch while it rolls out the next. `unit` defaults to a node of
    eight, or the largest power of two below it that today's counts allow. Raises `CapacityError` where there is nothing
    to split, `ConfigError` for a unit that splits nothing.
    """
    total = stages.num_gpus
    if total < 2:
        raise CapacityError("one GPU cannot be split", where="stages", value=total, mend="give at least two")
    step = unit or default_unit(stages)
    if not 1 <= step <= total // 2:
        raise ConfigError("no split has such a step", where="unit", value=step, allowed=(f"1 to {total // 2}",))
    steps_s = _steps_s(stages, stages.rollout_gpus, stages.train_gpus, stages.colocated or pipeline == "serial")

    def option(rollout: int, train: int, colocated: bool, serial: bool) -> Option:
        rollout_s, train_s = stages.rollout_on(rollout, 0.0), stages.train_on(train, 0.0)
        steps = _steps_s(stages, rollout, train, serial)
        gains = [1 - own / today for own, today in zip(steps, steps_s, strict=True)]
        rollout_idle, train_idle = (0.0 if colocated else 1 - own / steps[0] for own in (rollout_s, train_s))
        return Option(
            rollout, train, colocated, rollout_s, train_s, steps[0], rollout_idle, train_idle,
            Interval(min(steps), max(steps)), Interval(min(gains), max(gains)),
        )  # fmt: skip

    today = option(stages.rollout_gpus, stages.train_gpus, stages.colocated, stages.colocated or pipeline == "serial")
    found = [option(total - train, train, False, False) for train in range(step, total, step)]
    found.append(option(total, total, True, True))
    best = max([today, *found], key=lambda each: (each.gain.low, each.gain.high, each is today))
    work_s = stages.rollout_s * stages.rollout_gpus + stages.train_s * stages.train_gpus
    bound_s = max(work_s / total, stages.longest_s) + stages.sync_s
    return Advice(today, tuple(sorted(found, key=lambda each: (each.step_s, each.step.high))), best, bound_s, step)


def default_unit(stages: Stages) -> int:
    """The largest of 8, 4, 2, 1 GPUs that divides today's counts and leaves two units."""
    counts = (stages.rollout_gpus, stages.train_gpus)
    return next(n for n in (NODE_GPUS, 4, 2, 1) if n * 2 <= stages.num_gpus and all(c % n == 0 for c in counts))


def _steps_s(stages: Stages, rollout: int, train: int, serial: bool) -> list[float]:
    """Step time at every pair of serial shares; perfect scaling first."""
    times = []
    for rollout_serial, train_serial in product(SERIAL_SHARES, repeat=2):
        pair = stages.rollout_on(rollout, rollout_serial), stages.train_on(train, train_serial)
        times.append((sum(pair) if serial else max(pair)) + stages.sync_s)
    return times
