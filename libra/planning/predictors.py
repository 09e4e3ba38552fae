"""Step times of a run from its settings, by what earlier runs took: the two predictors that a backtest can judge.

`Scaling` needs GPU counts and tokens, `Corrected` also lengths, a layout, a model and a cluster. Both are made by
`fit_*` from whole runs and then answer for a `Setting`, which holds no measured time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Literal, Protocol

import numpy as np

from libra.core.errors import ConfigError
from libra.core.plan import Plan
from libra.core.policy import Statistics
from libra.planning.estimate import Estimator

Pipeline = Literal["serial", "colocated", "barrier", "async"]
IN_TURN = ("serial", "colocated")


@dataclass(frozen=True)
class Job:
    """A layout and the lengths that it served: what `Corrected` prices."""

    plan: Plan
    statistics: Statistics


@dataclass(frozen=True)
class Setting:
    """What is known of a run without timing it; `tokens` are those trained in a step, on average."""

    name: str
    rollout_gpus: int
    train_gpus: int
    pipeline: Pipeline
    tokens: float
    job: Job | None = None

    @property
    def num_gpus(self) -> int:
        return self.rollout_gpus if self.pipeline == "colocated" else self.rollout_gpus + self.train_gpus

    @property
    def layout(self) -> object:
        """Equal for runs on the same split, and on the same layout where that is known."""
        if self.job is None:
            return self.rollout_gpus, self.train_gpus
        plan = self.job.plan
        return plan.train, tuple(sorted((i.tp, i.bucket) for i in plan.instances)), plan.bounds_tok[:-1]


@dataclass(frozen=True)
class StageTimes:
    """Mean seconds of a step and its stages."""

    rollout_s: float
    train_s: float
    step_s: float


@dataclass(frozen=True)
class Run:
    """A run that has been made; `measured` are means over its steady steps."""

    setting: Setting
    measured: StageTimes


class Predictor(Protocol):
    """Knows earlier runs; is asked about settings."""

    def predict(self, setting: Setting) -> StageTimes: ...


def stages_s(pipeline: Pipeline, rollout_s: float, train_s: float) -> float:
    """Step without sync and the rest: one stage after the other, or the slower of the two."""
    return rollout_s + train_s if pipeline in IN_TURN else max(rollout_s, train_s)


def rest_s(runs: Sequence[Run]) -> float:
    """Mean seconds of a step beyond its stages: weight sync, checkpoints, stages that wait in turn for each other."""
    spare = [run.measured.step_s - stages_s(run.setting.pipeline, *_stages(run)) for run in runs]
    return max(0.0, float(np.mean(spare)))


def _stages(run: Run) -> tuple[float, float]:
    return run.measured.rollout_s, run.measured.train_s


@dataclass(frozen=True)
class Line:
    """Seconds a token on k GPUs: `fixed + shared / k` (Amdahl's law)."""

    fixed: float
    shared: float

    def at(self, num_gpus: int) -> float:
        return self.fixed + self.shared / num_gpus

    def fixed_share(self, num_gpus: int) -> float:
        """Of the time on so many GPUs, what no further one shortens."""
        return self.fixed / self.at(num_gpus)


def fit_line(num_gpus: Sequence[int], seconds_per_tok: Sequence[float]) -> Line:
    """Least squares of relative errors with both parts at least 0; perfect scaling where all counts are equal."""
    gpus, times = np.asarray(num_gpus, dtype=float), np.asarray(seconds_per_tok, dtype=float)
    shared, fixed = np.stack([1 / gpus, np.ones_like(gpus)]) / times
    alone = [Line(0.0, _slope(shared)), Line(_slope(fixed), 0.0)]
    if len(set(num_gpus)) == 1:
        return alone[0]
    both, *_ = np.linalg.lstsq(np.stack([fixed, shared], axis=1), np.ones_like(gpus), rcond=None)
    if min(both) >= 0:
        return Line(float(both[0]), float(both[1]))
    return min(alone, key=lambda line: float(np.sum((line.fixed * fixed + line.shared * shared - 1) ** 2)))


def _slope(x: np.ndarray) -> float:
    """Of y = slope * x for y all 1."""
    return float(x.sum() / (x**2).sum())


@dataclass(frozen=True)
class Scaling:
    """Stage times from tokens and GPU counts alone."""

    rollout: Line
    train: Line
    rest_s: float

    def predict(self, setting: Setting) -> StageTimes:
        rollout = setting.tokens * self.rollout.at(setting.rollout_gpus)
        train = setting.tokens * self.train.at(setting.train_gpus)
        return StageTimes(rollout, train, stages_s(setting.pipeline, rollout, train) + self.rest_s)


def fit_scaling(runs: Sequence[Run]) -> Scaling:
    rollout = [run.measured.rollout_s / run.setting.tokens for run in runs]
    train = [run.measured.train_s / run.setting.tokens for run in runs]
    return Scaling(
        fit_line([run.setting.rollout_gpus for run in runs], rollout),
        fit_line([run.setting.train_gpus for run in runs], train),
        rest_s(runs),
    )


@dataclass(frozen=True)
class Corrected:
    """The planner's estimate of a layout for its lengths, times what earlier runs took over what it said of them."""

    estimator: Estimator
    rollout: float
    train: float
    rest_s: float

    def predict(self, setting: Setting) -> StageTimes:
        rollout, train = raw_stages_s(self.estimator, setting)
        rollout, train = rollout * self.rollout, train * self.train
        return StageTimes(rollout, train, stages_s(setting.pipeline, rollout, train) + self.rest_s)


def fit_corrected(estimator: Estimator, runs: Sequence[Run]) -> Corrected:
    """Factors are geometric means over the runs. Raises `ConfigError` for a layout that cannot serve its lengths."""
    raw = [raw_stages_s(estimator, run.setting) for run in runs]
    rollout = [log(run.measured.rollout_s / said) for run, (said, _) in zip(runs, raw, strict=True)]
    train = [log(run.measured.train_s / said) for run, (_, said) in zip(runs, raw, strict=True)]
    return Corrected(estimator, exp(float(np.mean(rollout))), exp(float(np.mean(train))), rest_s(runs))


def raw_stages_s(estimator: Estimator, setting: Setting) -> tuple[float, float]:
    """What the estimate says of rollout and training before any correction."""
    job = setting.job
    assert job is not None, "a corrected estimate is asked about layouts only"
    expected = estimator.estimate(job.plan, estimator.demand(job.statistics, None))
    if not 0 < expected.rollout_s < float("inf"):
        raise ConfigError("no estimate for this rollout: an instance cannot serve its lengths", where=setting.name)
    return expected.rollout_s, expected.train_s
