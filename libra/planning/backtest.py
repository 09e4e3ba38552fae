"""The backtest: a predictor that has seen earlier runs only, held to the later ones, and what its errors allow.

A recommendation is a ratio of two predictions, so its interval has the errors of both; where that includes no gain, or
where too few runs tell the error, the answer is to stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import ceil, exp, gcd, log, sqrt
from typing import Literal

import msgspec
from scipy.special import stdtrit

from libra.core.errors import ConfigError
from libra.core.plan import InstanceSpec, Plan
from libra.cost.memory import train_fits
from libra.planning.estimate import Estimator
from libra.planning.predictors import Predictor, Run, Setting, StageTimes
from libra.planning.search import TIE_SHARE
from libra.planning.stages import NODE_GPUS

LEVEL = 0.95
"""Two-sided level of the interval, as of all intervals of the report."""
MIN_ERRORS = 2
"""One error tells no spread."""
MAX_LOG = 700.0
"""The largest exponent of a finite double: an interval that wide says nothing anyway."""
Answer = Literal["move", "stay", "unsure", "few errors", "no split"]
Fit = Callable[[Sequence[Run]], Predictor]


@dataclass(frozen=True)
class Held:
    """A later run: what was predicted from its setting, what was measured, and whether its layout was calibrated on."""

    run: Run
    predicted: StageTimes
    is_new: bool

    @property
    def error(self) -> float:
        """Predicted over measured step, less 1."""
        return self.predicted.step_s / self.run.measured.step_s - 1

    @property
    def log_error(self) -> float:
        return log(self.run.measured.step_s / self.predicted.step_s)


@dataclass(frozen=True)
class Span:
    """A value with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Backtest:
    """`earlier` runs were calibrated on, `held` are the later ones. `naive_error`: mean absolute error of taking each
    later step for the earlier ones' mean."""

    predictor: Predictor
    earlier: tuple[Run, ...]
    held: tuple[Held, ...]

    @property
    def runs(self) -> tuple[Run, ...]:
        return (*self.earlier, *(each.run for each in self.held))

    @property
    def today(self) -> Run:
        return self.held[-1].run

    @property
    def mean_error(self) -> float:
        """Mean absolute error of the steps."""
        return sum(abs(each.error) for each in self.held) / len(self.held)

    @property
    def naive_error(self) -> float:
        mean_s = sum(run.measured.step_s for run in self.earlier) / len(self.earlier)
        return sum(abs(mean_s / each.run.measured.step_s - 1) for each in self.held) / len(self.held)

    def errors_for(self, setting: Setting) -> list[float]:
        """Log errors that may speak for a setting: of a layout that was not calibrated on, those of such layouts."""
        is_new = setting.layout not in {run.setting.layout for run in self.earlier}
        return [each.log_error for each in self.held if each.is_new or not is_new]


def backtest(runs: Sequence[Run], fit: Fit, num_earlier: int | None = None) -> Backtest:
    """Fit on the first `num_earlier` runs (default: half, rounded up) and predict the others from their settings.

    Raises `ConfigError` for fewer than two runs, and for a number that leaves nothing to fit or to predict.
    """
    if len(runs) < 2:
        raise ConfigError("a backtest needs an earlier run to calibrate on and a later one to predict",
                          where="--from", value=f"{len(runs)} run", mend="give two runs or more; three later ones "
                          "on other splits can make a recommendation sure")  # fmt: skip
    number = ceil(len(runs) / 2) if num_earlier is None else num_earlier
    if not 0 < number < len(runs):
        raise ConfigError("no run is left to calibrate on, or none to predict", where="--calibrate-on", value=number,
                          allowed=(f"1 to {len(runs) - 1}",))  # fmt: skip
    earlier, later = tuple(runs[:number]), runs[number:]
    predictor = fit(earlier)
    seen = {run.setting.layout for run in earlier}
    blind = [(predictor.predict(run.setting), run.setting.layout not in seen) for run in later]
    return Backtest(
        predictor, earlier, tuple(Held(run, *found) for run, found in zip(later, blind, strict=True))
    )  # fmt: skip


def ratio_factor(log_errors: Sequence[float]) -> float:
    """By what factor the ratio of two predictions may be off, either way, at `LEVEL`.

    Student's t on the root mean square of the log errors (about zero, so that a bias counts as error), times the
    square root of two for the two predictions. Errors are taken for independent draws from one normal law.
    """
    num = len(log_errors)
    spread = sqrt(sum(error**2 for error in log_errors) / num)
    return exp(min(MAX_LOG, float(stdtrit(num, 0.5 + LEVEL / 2)) * spread * sqrt(2)))


@dataclass(frozen=True)
class Choice:
    """What to do. `gain` is the share of today's step that `best` saves; None where no error can tell its interval.

    `untested` is a setting that the predictor likes better by more than a tie, outside what the runs have tried.
    """

    answer: Answer
    today: Run
    best: Setting
    predicted_s: float
    gain: Span | None
    num_errors: int
    untested: tuple[Setting, float] | None = None

    @property
    def saved_s(self) -> Span | None:
        """Seconds of a step."""
        if self.gain is None:
            return None
        step_s = self.today.measured.step_s
        return Span(*(share * step_s for share in (self.gain.value, self.gain.low, self.gain.high)))

    def gpu_hours(self, num_steps: int) -> Span | None:
        """Saved in `num_steps` steps on today's GPUs."""
        if (saved := self.saved_s) is None:
            return None
        hours = self.today.setting.num_gpus * num_steps / 3600
        return Span(saved.value * hours, saved.low * hours, saved.high * hours)

    def pays_back_after(self, move_s: float) -> int | None:
        """Steps at the least gain; None: never for sure."""
        saved = self.saved_s
        return ceil(move_s / saved.low) if saved and saved.low > 0 else None


def choose(found: Backtest, tested: Sequence[Setting], others: Sequence[Setting] = ()) -> Choice:
    """The best of `tested` against today's setting, under the lengths or tokens of the latest run.

    `others` are outside what the runs have tried: they are named, never recommended.
    """
    predict = found.predictor.predict
    today = found.today
    today_s = predict(today.setting).step_s
    priced = [(setting, predict(setting).step_s) for setting in tested if setting.layout != today.setting.layout]
    best, best_s = min([(today.setting, today_s * (1 - TIE_SHARE)), *priced], key=lambda pair: pair[1])
    untested = min(((s, predict(s).step_s) for s in others), key=lambda pair: pair[1], default=None)
    if untested and untested[1] >= best_s * (1 - TIE_SHARE):
        untested = None
    if best is today.setting:
        return Choice("stay" if priced else "no split", today, best, today_s, None, 0, untested)
    errors = found.errors_for(best)
    if len(errors) < MIN_ERRORS:
        return Choice("few errors", today, best, best_s, None, len(errors), untested)
    ratio, factor = best_s / today_s, ratio_factor(errors)
    gain = Span(1 - ratio, 1 - ratio * factor, 1 - ratio / factor)
    return Choice("move" if gain.low > 0 else "unsure", today, best, best_s, gain, len(errors), untested)


def splits(runs: Sequence[Run]) -> tuple[list[Setting], list[Setting]]:
    """Splits of the latest run's GPUs: within what both pools of the runs have had, and beyond.

    In steps of the largest number, a node at most, that divides all counts of the runs.
    """
    today = runs[-1].setting
    if today.pipeline == "colocated":
        return [], []
    counts = [(run.setting.rollout_gpus, run.setting.train_gpus) for run in runs]
    unit = reduce(gcd, [NODE_GPUS, today.num_gpus, *(count for pair in counts for count in pair)])
    found = [
        replace(today, rollout_gpus=today.num_gpus - train, train_gpus=train)
        for train in range(unit, today.num_gpus, unit)
    ]
    inside = [each for each in found if is_tried(each, runs)]
    return inside, [each for each in found if each not in inside]


def is_tried(setting: Setting, runs: Sequence[Run]) -> bool:
    """Whether each pool is between the least and the most GPUs that it has had."""
    return all(
        min(sizes) <= own <= max(sizes)
        for own, sizes in (
            (setting.rollout_gpus, [run.setting.rollout_gpus for run in runs]),
            (setting.train_gpus, [run.setting.train_gpus for run in runs]),
        )
    )


def layouts(estimator: Estimator, runs: Sequence[Run], compared: Sequence[Plan]) -> tuple[list[Setting], list[Setting]]:
    """Layouts of the latest run's GPUs: built as the runs' own were, within what both pools have had; and beyond.

    Within are the runs' own plans, and equal instances of a size that ran beside training of the degrees that ran.
    `compared` are the planner's own candidates, which count as tried when they are built of such parts.
    """
    today = runs[-1].setting
    own = [run.setting.job.plan for run in runs if run.setting.job is not None]
    trains = {msgspec.structs.replace(plan.train, dp=1) for plan in own}
    sizes = {i.tp for plan in own for i in plan.instances}
    grown = [] if today.pipeline == "colocated" else _grown(own[-1], today.num_gpus, trains, sizes)
    inside: list[Setting] = []
    beyond: list[Setting] = []
    fitting = (plan for plan in grown if train_fits(estimator.cluster.gpu, estimator.model, plan.train))
    for plan in (*own, *fitting, *compared):
        setting = _with_plan(today, plan)
        if plan.num_gpus != today.num_gpus or plan.colocated != (today.pipeline == "colocated"):
            continue
        known = msgspec.structs.replace(plan.train, dp=1) in trains and {i.tp for i in plan.instances} <= sizes
        (inside if known and is_tried(setting, runs) else beyond).append(setting)
    return inside, beyond


def _grown(like: Plan, total: int, trains: set, sizes: set[int]) -> list[Plan]:
    """Every number of replicas of each training layout, the other GPUs in equal instances."""
    found = []
    for train in trains:
        for dp in range(1, total // train.replica_gpus + 1):
            left = total - dp * train.replica_gpus
            if dp % train.ep:
                continue
            for tp in sizes:
                if left and left % tp == 0:
                    instances = tuple(InstanceSpec(number, tp) for number in range(left // tp))
                    sized = msgspec.structs.replace(train, dp=dp)
                    found.append(Plan(sized, instances, like.bounds_tok[-1:], note="homogeneous rollout"))
    return found


def _with_plan(today: Setting, plan: Plan) -> Setting:
    assert today.job is not None
    return replace(
        today, rollout_gpus=plan.rollout_gpus, train_gpus=plan.train.num_gpus, job=replace(today.job, plan=plan)
    )
