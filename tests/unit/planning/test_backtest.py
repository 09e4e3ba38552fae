"""The backtest on runs whose truth is known: factors are found, intervals cover, later times are never looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from libra.core.errors import ConfigError
from libra.core.hardware import Cluster, Model
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics
from libra.planning.backtest import backtest, choose, layouts, ratio_factor, splits
from libra.planning.estimate import Estimator
from libra.planning.predictors import (
    Job,
    Line,
    Run,
    Scaling,
    Setting,
    StageTimes,
    fit_corrected,
    fit_line,
    fit_scaling,
    raw_stages_s,
    stages_s,
)

TRUTH = Scaling(Line(2e-5, 4e-3), Line(1e-5, 3e-3), 5.0)
"""Seconds a token on one GPU as in a 32-GPU job of a million tokens a step (assumed)."""


def made(rollout_gpus: int, train_gpus: int, noise: float = 1.0, tokens: float = 1e6, **changes: object) -> Run:
    setting = Setting(f"{rollout_gpus}:{train_gpus}", rollout_gpus, train_gpus, "barrier", tokens)
    setting = replace(setting, **changes)  # type: ignore[arg-type]
    told = TRUTH.predict(setting)
    return Run(setting, StageTimes(told.rollout_s * noise, told.train_s * noise, told.step_s * noise))


def test_amdahls_law_is_found_and_parts_stay_positive() -> None:
    line = Line(2.0, 60.0)
    found = fit_line([4, 8, 16], [line.at(4), line.at(8), line.at(16)])
    assert (found.fixed, found.shared) == pytest.approx((2.0, 60.0))
    assert found.fixed_share(30) == pytest.approx(0.5)
    assert fit_line([8, 8], [3.0, 3.0]) == Line(0.0, pytest.approx(24.0))
    assert fit_line([4, 8], [10.0, 4.0]).fixed == 0.0  # better than perfect scaling
    assert fit_line([4, 8], [4.0, 10.0]).shared == 0.0  # slower on more GPUs


def test_a_truth_of_the_predictors_form_is_predicted_exactly() -> None:
    runs = [made(24, 8), made(16, 16), made(20, 12, tokens=2e6), made(8, 24), made(12, 20)]
    found = backtest(runs, fit_scaling)
    assert (len(found.earlier), len(found.held)) == (3, 2)
    assert [held.error for held in found.held] == pytest.approx([0, 0], abs=1e-9)
    assert found.mean_error < 1e-9 < found.naive_error
    choice = choose(found, *splits(runs))
    assert choice.answer == "move"
    assert choice.gain is not None and choice.saved_s is not None
    # Brute force over the truth: steps of four GPUs, inside 8 to 24 on either side.
    best_s = min(TRUTH.predict(made(32 - n, n).setting).step_s for n in range(8, 25, 4))
    assert choice.predicted_s == pytest.approx(best_s)
    assert choice.saved_s.value == pytest.approx(runs[-1].measured.step_s - best_s)
    hours = choice.gpu_hours(50)
    assert hours is not None and hours.value == pytest.approx(choice.saved_s.value * 32 * 50 / 3600)
    assert choice.pays_back_after(60.0) == math.ceil(60 / choice.saved_s.low)


@pytest.mark.parametrize("pipeline", ["serial", "barrier", "async"])
def test_step_follows_the_pipeline(pipeline: str) -> None:
    runs = [made(24, 8, pipeline=pipeline), made(16, 16, pipeline=pipeline), made(8, 24, pipeline=pipeline)]
    found = backtest(runs, fit_scaling)
    predicted = found.held[0].predicted
    stages = stages_s(runs[0].setting.pipeline, predicted.rollout_s, predicted.train_s)
    assert predicted.step_s == pytest.approx(stages + 5.0)


def corrupted(runs: Sequence[Run], factor: float) -> list[Run]:
    return [Run(run.setting, StageTimes(*(time * factor for time in vars(run.measured).values()))) for run in runs]


@pytest.mark.parametrize("factor", [1e-6, 1e6, math.nan])
def test_later_times_change_no_prediction(factor: float) -> None:
    runs = [made(24, 8, 1.02), made(16, 16, 0.97), made(20, 12), made(8, 24, 1.1)]
    told = [held.predicted for held in backtest(runs, fit_scaling).held]
    assert [held.predicted for held in backtest([*runs[:2], *corrupted(runs[2:], factor)], fit_scaling).held] == told
    assert [held.predicted for held in backtest([*corrupted(runs[:2], 2.0), *runs[2:]], fit_scaling).held] != told


def test_the_predictor_sees_earlier_runs_only() -> None:
    runs = [made(24, 8), made(16, 16), made(20, 12), made(8, 24), made(12, 20)]
    seen: list[Run] = []

    def fit(earlier: Sequence[Run]) -> Scaling:
        seen.extend(earlier)
        return fit_scaling(earlier)

    backtest(runs, fit, 2)
    assert seen == runs[:2]


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs an earlier run"):
        backtest([made(16, 16)], fit_scaling)
    with pytest.raises(ConfigError, match="needs an earlier run"):
        backtest([], fit_scaling)
    for number in (0, 3, -1):
        with pytest.raises(ConfigError, match="calibrate-on"):
            backtest([made(16, 16), made(8, 24), made(24, 8)], fit_scaling, number)


def test_one_later_run_tells_no_interval() -> None:
    runs = [made(24, 8), made(16, 16), made(8, 24)]
    choice = choose(backtest(runs, fit_scaling), *splits(runs))
    assert (choice.answer, choice.gain, choice.num_errors) == ("few errors", None, 1)
    assert choice.gpu_hours(100) is None and choice.pays_back_after(1.0) is None


def test_repeats_of_an_earlier_split_say_nothing_of_a_new_one() -> None:
    runs = [made(24, 8), made(16, 16), made(8, 24), *(made(8, 24, noise) for noise in (1.01, 0.99, 1.0))]
    choice = choose(backtest(runs, fit_scaling, 3), *splits(runs))
    assert (choice.answer, choice.best.train_gpus) == ("move", 16)  # an earlier run had it: every error counts
    runs = [made(24, 8), made(8, 24), *(made(8, 24, noise) for noise in (1.01, 0.99, 1.0))]
    found = backtest(runs, fit_scaling, 2)
    choice = choose(found, *splits(runs))
    assert (choice.answer, choice.num_errors) == ("few errors", 0)
    assert found.errors_for(runs[0].setting) == [held.log_error for held in found.held]


def test_it_stays_where_the_present_split_is_best() -> None:
    runs = [made(24, 8), made(12, 20), made(8, 24), made(16, 16)]
    best = min(range(8, 25, 4), key=lambda n: TRUTH.predict(made(32 - n, n).setting).step_s)
    runs.append(made(32 - best, best))
    choice = choose(backtest(runs, fit_scaling, 2), *splits(runs))
    assert (choice.answer, choice.best, choice.gain) == ("stay", runs[-1].setting, None)


def test_one_split_and_colocated_runs_have_nothing_to_move_to() -> None:
    runs = [made(8, 24, noise) for noise in (1.0, 1.01, 0.99, 1.02)]
    choice = choose(backtest(runs, fit_scaling), *splits(runs))
    assert choice.answer == "no split" and choice.untested is not None
    together = [made(n, n, pipeline="colocated") for n in (8, 16, 16, 32)]
    choice = choose(backtest(together, fit_scaling), *splits(together))
    assert (choice.answer, choice.untested) == ("no split", None)


def test_nothing_beyond_what_ran_is_recommended() -> None:
    runs = [made(8, 24), made(4, 28), made(6, 26), made(5, 27)]
    choice = choose(backtest(runs, fit_scaling), *splits(runs))
    assert choice.best.rollout_gpus <= 8
    assert choice.untested is not None and choice.untested[0].rollout_gpus > 8
    assert choice.untested[1] < choice.predicted_s


def test_a_wide_error_abstains() -> None:
    runs = [made(24, 8), made(16, 16), made(20, 12, 1.6), made(12, 20, 0.7), made(8, 24)]
    choice = choose(backtest(runs, fit_scaling, 2), *splits(runs))
    assert choice.answer == "unsure"
    assert choice.gain is not None and choice.gain.low < 0 < choice.gain.value < choice.gain.high


def test_the_factor_is_students_t() -> None:
    # t of 0.975 with 3 degrees of freedom is 3.182 (tables); errors of 0.1 have a root mean square of 0.1.
    assert ratio_factor([0.1, -0.1, 0.1]) == pytest.approx(math.exp(3.1824463 * 0.1 * math.sqrt(2)))
    assert ratio_factor([0.0, 0.0]) == 1.0
    assert ratio_factor([0.1, 0.1]) > ratio_factor([0.1, 0.1, 0.1])
    assert math.isfinite(ratio_factor([1e6, 1e6]))


@pytest.mark.parametrize("num_later", [2, 3, 8])
def test_the_interval_covers_as_often_as_it_says(num_later: int) -> None:
    """4,000 draws, standard error 0.35 points: within two points of 95 %, where errors are as assumed.

    Both steps are new runs with errors of their own; the earlier runs are many, so that their noise is small.
    """
    rng = np.random.default_rng(num_later)
    errors = rng.normal(0, 0.05, (4000, num_later))
    ratio = rng.normal(0, 0.05, 4000) - rng.normal(0, 0.05, 4000)
    covered = [abs(each) <= math.log(ratio_factor(row)) for each, row in zip(ratio, errors.tolist(), strict=True)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("num_earlier", "stays", "low", "high"),
    [(6, False, 0.93, 0.98), (6, True, 0.93, 1.0), (2, False, 0.90, 1.0), (2, True, 0.90, 1.0)],
)
def test_the_gain_of_the_whole_procedure_is_covered(num_earlier: int, stays: bool, low: float, high: float) -> None:
    """The true gain lies in the interval about as often as it says; 1,500 draws, errors of 5 % a run.

    Either errors belong to runs, and the next steps on both splits have new ones: with six earlier runs 93 to 98 %. Or
    they belong to splits and stay: the latest run's own is then among those that make the interval, which is too wide
    (93 to 100 %). With two earlier runs, whose line goes through both points, at least 90 %.
    """
    rng = np.random.default_rng(num_earlier)
    earlier = [24, 8, 16, 20, 12, 26][:num_earlier]
    inside = []
    for _ in range(1500):
        error, later = (dict(zip(range(2, 31), np.exp(rng.normal(0, 0.05, 29)), strict=True)) for _ in range(2))
        runs = [made(32 - n, n, error[n]) for n in (*earlier, 18, 14, 22, 10)]
        choice = choose(backtest(runs, fit_scaling, num_earlier), *splits(runs))
        if choice.gain is None:
            continue
        then = error if stays else later
        steps = [TRUTH.predict(each).step_s * then[each.train_gpus] for each in (choice.best, choice.today.setting)]
        inside.append(choice.gain.low <= 1 - steps[0] / steps[1] <= choice.gain.high)
    assert len(inside) > 1000
    assert low <= np.mean(inside) <= high


# -- with layouts and lengths --------------------------------------------------------------------------------------


@pytest.fixture
def laid_out(cluster: Cluster, model: Model, statistics: Callable[..., Statistics]) -> Callable[..., Run]:
    """A run whose stages take `rollout` and `train` times the estimate, 4 s beside them, on TP4 engines."""
    estimator = Estimator(cluster, model)

    def build(dp: int, rollout: float = 1.3, train: float = 0.8, tp: int = 4, seed: int = 0) -> Run:
        engines = tuple(InstanceSpec(i, tp) for i in range((cluster.num_gpus - 4 * dp) // tp))
        plan = Plan(TrainLayout(4, dp), engines, (40960,))
        job = Job(plan, statistics(512, mean_tok=6000.0, seed=seed))
        setting = Setting(f"dp{dp}", plan.rollout_gpus, plan.train.num_gpus, "barrier", 3e6, job)
        raw = raw_stages_s(estimator, setting)
        times = raw[0] * rollout, raw[1] * train
        return Run(setting, StageTimes(*times, max(times) + 4.0))

    return build


def test_the_estimates_factors_are_found(cluster: Cluster, model: Model, laid_out: Callable[..., Run]) -> None:
    estimator = Estimator(cluster, model)
    runs = [laid_out(2), laid_out(4, seed=1), laid_out(3, seed=2), laid_out(6), laid_out(8, seed=3)]
    found = backtest(runs, lambda earlier: fit_corrected(estimator, earlier))
    predictor = found.predictor
    assert (predictor.rollout, predictor.train, predictor.rest_s) == pytest.approx((1.3, 0.8, 4.0))  # type: ignore[attr-defined]
    assert found.mean_error < 1e-9
    tested, beyond = layouts(estimator, runs, ())
    assert {(each.train_gpus // 4) for each in tested} == set(range(2, 9))
    assert all(not 8 <= each.train_gpus <= 32 for each in beyond)
    choice = choose(found, tested, beyond)
    steps = {dp: laid_out(dp, seed=3).measured.step_s for dp in range(2, 9)}
    assert choice.best.train_gpus == 4 * min(steps, key=lambda dp: steps[dp])
    assert choice.predicted_s == pytest.approx(min(steps.values()))


def test_factors_are_means_over_noise(cluster: Cluster, model: Model, laid_out: Callable[..., Run]) -> None:
    runs = [laid_out(dp, 1.3 * noise, 0.8 / noise) for dp, noise in ((2, 1.1), (4, 1 / 1.1), (3, 1.0))]
    found = fit_corrected(Estimator(cluster, model), runs)
    assert (found.rollout, found.train) == pytest.approx((1.3, 0.8))


def test_other_engine_sizes_are_named_not_recommended(
    cluster: Cluster, model: Model, laid_out: Callable[..., Run]
) -> None:
    estimator = Estimator(cluster, model)
    runs = [laid_out(2), laid_out(4), laid_out(6), laid_out(8)]
    other = laid_out(6, tp=8).setting.job
    assert other is not None
    tested, beyond = layouts(estimator, runs, [other.plan])
    assert other.plan in [each.job.plan for each in beyond if each.job]
    assert all({i.tp for i in each.job.plan.instances} == {4} for each in tested if each.job)


def test_training_that_does_not_fit_is_no_candidate(
    cluster: Cluster, model: Model, laid_out: Callable[..., Run]
) -> None:
    """One replica of TP4 cannot hold 14 B parameters with their optimizer (16 B a parameter: 224 GB, 4 x 80 GB less
    activations of a 40,960-token micro-batch)."""
    from libra.cost.memory import train_fits

    estimator = Estimator(cluster, model)
    runs = [laid_out(1), laid_out(8)]
    tested, _ = layouts(estimator, runs, ())
    grown = [each.job.plan.train for each in tested[2:] if each.job]
    assert grown and all(train_fits(cluster.gpu, model, train) for train in grown)
