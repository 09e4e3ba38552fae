"""`libra plan --from RUN... --backtest`: predict later runs from earlier ones, blind, and say what that allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.commands.output import console, figure, print_json, table
from experiments.commands.plan_tables import rollout_of, training_of
from experiments.job_runs import Made, read_runs
from libra.core.errors import ConfigError
from libra.core.plan import Plan
from libra.planning.backtest import (
    LEVEL,
    MIN_ERRORS,
    Backtest,
    Choice,
    Held,
    Span,
    backtest,
    choose,
    layouts,
    splits,
)
from libra.planning.predictors import Corrected, Predictor, Scaling, Setting, fit_corrected, fit_scaling

DEFINITIONS = {
    "run": "means over its steady steps: without the first two (at most a quarter) and the last, from four steps on",
    "predicted": "from the run's GPUs, layout, lengths or tokens, and the earlier runs' times; none of its own times",
    "error": "predicted over measured step, less 1; the mean is of absolute errors",
    "new": "no earlier run had this layout: only such errors can speak for a layout that no earlier run had",
    "earlier mean": "the error of taking each later step for the mean of the earlier runs' steps",
    "gain": "1 less predicted best over predicted latest setting, both for the latest run's lengths or tokens",
    "interval": f"{LEVEL:.0%}: the ratio times and over exp(t * RMS of the log errors * sqrt 2), Student's t with one "
    "degree of freedom an error; sure when all of it is above 0",
    "GPU hours": "gain * the latest run's measured step * its GPUs * steps; a move's stall is not in it",
    "tried": "each pool between the least and the most GPUs that it had; engine sizes and training degrees that ran",
}


@dataclass(frozen=True)
class Ask:
    """`num_earlier` None: half of the runs, rounded up. GPU hours are told for `num_steps` steps."""

    sources: tuple[Path, ...]
    pipeline: str
    num_earlier: int | None
    num_steps: int
    move_s: float


def plan_backtest(ask: Ask, *, as_json: bool) -> None:
    """Raises `ConfigError` for fewer than two runs, and for runs that cannot be compared."""
    made = read_runs(ask.sources, ask.pipeline)
    found, choice = judge(made, ask.num_earlier)
    if as_json:
        return print_json(_json(found, choice, ask, made))
    screen = console()
    for line in (*_head(found, made), ""):
        screen.print(line, markup=False)
    screen.print(table("Later runs", COLUMNS, map(_row, found.held)))
    ending = ("", *_calibration(found), *answer(found, choice, ask), "", *(f"{k}: {v}" for k, v in DEFINITIONS.items()))
    for line in ending:
        screen.print(line, markup=False)


def refuse_beside(workload: str | None, emit: str, *stage_times: object) -> None:
    """Raises `ConfigError` for options that a backtest has no use for."""
    if workload is not None or emit or any(value is not None for value in stage_times):
        raise ConfigError("a backtest takes runs alone", where="libra plan --backtest",
                          mend="leave out the workload, --emit, --rollout-s, --train-s and --gpus")  # fmt: skip


def judge(made: Sequence[Made], num_earlier: int | None = None) -> tuple[Backtest, Choice]:
    """Backtest and choice, by the estimate where layouts are known, else by GPU counts and tokens."""
    runs = [each.run for each in made]
    if not runs or runs[0].setting.job is None:
        found = backtest(runs, fit_scaling, num_earlier)
        return found, choose(found, *splits(runs))
    from libra.clusters import load_cluster
    from libra.models import load_model
    from libra.planning.estimate import Estimator
    from libra.planning.search import JointPlanner

    cluster = load_cluster(made[0].cluster, made[0].network or None)
    planner = JointPlanner(cluster, load_model(made[0].model))
    estimator = Estimator(cluster, planner.model)
    found = backtest(runs, lambda earlier: fit_corrected(estimator, earlier), num_earlier)
    job = runs[-1].setting.job
    assert job is not None
    return found, choose(found, *layouts(estimator, runs, planner.compared(job.statistics)))


COLUMNS = ("run", "layout", "rollout s", "measured", "training s", "measured", "step s", "measured", "error", "")


def _row(held: Held) -> Sequence[object]:
    predicted, measured = held.predicted, held.run.measured
    return (
        held.run.setting.name, where_of(held.run.setting), figure(predicted.rollout_s), figure(measured.rollout_s),
        figure(predicted.train_s), figure(measured.train_s), figure(predicted.step_s), figure(measured.step_s),
        f"{held.error:+.1%}", "new" if held.is_new else "",
    )  # fmt: skip


def where_of(setting: Setting) -> str:
    """Split, and layout where it is known."""
    if setting.pipeline == "colocated":
        split = f"{setting.num_gpus} colocated"
    else:
        split = f"{setting.rollout_gpus}:{setting.train_gpus}"
    if setting.job is None:
        return split
    plan: Plan = setting.job.plan
    return f"{split} ({rollout_of(plan).partition(': ')[2]}; {training_of(plan).partition(': ')[2]})"


def _head(found: Backtest, made: Sequence[Made]) -> list[str]:
    order = "in the order in which they ended" if all(each.ended_s for each in made) else "in the order given"
    names = ", ".join(run.setting.name for run in found.earlier)
    known = "layouts and lengths" if found.today.setting.job else "GPU counts and tokens"
    return [
        f"Calibrated on {_num(len(found.earlier), 'run')} ({names}), {order}; predicted "
        f"{_num(len(found.held), 'later run')} from their {known}, without their times."
    ]


def _num(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _calibration(found: Backtest) -> list[str]:
    lines = [
        f"Mean error {found.mean_error:.1%} of a step; by the earlier mean {found.naive_error:.1%}.",
        f"Calibration: {_calibrated(found.predictor, found.today.setting)}.",
    ]
    if found.mean_error >= found.naive_error:
        lines.append("The predictions are no better than the earlier mean: the splits told nothing about these steps.")
    return lines


def _calibrated(predictor: Predictor, today: Setting) -> str:
    if isinstance(predictor, Corrected):
        return (
            f"rollout takes {predictor.rollout:.3g} times the estimate, training {predictor.train:.3g} times; "
            f"{figure(predictor.rest_s)} s of a step are neither"
        )
    assert isinstance(predictor, Scaling)
    rollout, train = predictor.rollout.fixed_share(today.rollout_gpus), predictor.train.fixed_share(today.train_gpus)
    return (
        f"on the latest run's GPUs {rollout:.0%} of rollout and {train:.0%} of training is what no further GPU "
        f"shortens; {figure(predictor.rest_s)} s of a step are neither"
    )


def answer(found: Backtest, choice: Choice, ask: Ask) -> list[str]:
    """The recommendation, or why there is none."""
    today, best = where_of(choice.today.setting), where_of(choice.best)
    lines = [_said(choice, today, best)]
    if choice.gain is not None:
        hours = choice.gpu_hours(ask.num_steps)
        assert hours is not None
        lines.append(
            f"In {ask.num_steps:,} steps that is {figure(hours.value)} GPU hours, {figure(hours.low)} to "
            f"{figure(hours.high)} ({LEVEL:.0%} interval from {_num(choice.num_errors, 'error')})."
        )
    if choice.answer == "move":
        steps = choice.pays_back_after(ask.move_s)
        lines.append(f"A move that stalls the job for {figure(ask.move_s)} s is paid back after "
                     f"{_num(steps or 0, 'step')} at the least gain.")  # fmt: skip
    if choice.untested:
        setting, step_s = choice.untested
        lines.append(
            f"Outside what your runs have tried, {where_of(setting)} is predicted at {figure(step_s)} s a step; no "
            "error above speaks for it. Run it for a few steps and backtest again."
        )
    return lines


def _said(choice: Choice, today: str, best: str) -> str:
    if choice.answer == "no split":
        why = "colocated stages have no split to choose" if choice.best.pipeline == "colocated" else (
            "your runs have tried no other split of these GPUs"
        )  # fmt: skip
        return f"Stay at {today}: {why}, so no error tells what another would be worth."
    if choice.answer == "stay":
        return f"Stay at {today}: of what your runs have tried, none is predicted faster by more than a tie."
    predicted = f"{best} is predicted at {figure(choice.predicted_s)} s a step"
    if choice.answer == "few errors":
        return (
            f"Stay at {today}: {predicted}, but {MIN_ERRORS} errors are needed for an interval and {choice.num_errors} "
            "can speak for it. Give more later runs, on splits that no earlier run had."
        )
    gain = choice.gain
    assert gain is not None
    share = f"{gain.value:.1%} of a step, {gain.low:.1%} to {gain.high:.1%}"
    if choice.answer == "unsure":
        return f"Stay at {today}: {predicted}, a gain of {share}, which includes none."
    return f"Move from {today} to {best}: {predicted.partition(' is ')[2]}, which saves {share}."


def _json(found: Backtest, choice: Choice, ask: Ask, made: Sequence[Made]) -> dict[str, Any]:
    def setting(each: Setting) -> dict[str, Any]:
        plan = msgspec.to_builtins(each.job.plan) if each.job else None
        return {"name": each.name, "rollout_gpus": each.rollout_gpus, "train_gpus": each.train_gpus,
                "pipeline": each.pipeline, "tokens": each.tokens, "plan": plan}  # fmt: skip

    def span(each: Span | None) -> dict[str, float] | None:
        return None if each is None else vars(each)

    later = [
        setting(held.run.setting) | {"predicted": vars(held.predicted), "measured": vars(held.run.measured),
                                     "error": held.error, "new": held.is_new}
        for held in found.held
    ]  # fmt: skip
    untested = choice.untested
    return {
        "order": "ended" if all(each.ended_s for each in made) else "given",
        "earlier": [setting(run.setting) | {"measured": vars(run.measured)} for run in found.earlier],
        "later": later,
        "mean_error": found.mean_error,
        "earlier_mean_error": found.naive_error,
        "calibration": {k: v for k, v in vars(found.predictor).items() if k != "estimator"}
        if isinstance(found.predictor, Corrected) else _scaling(found.predictor),
        "answer": choice.answer,
        "said": answer(found, choice, ask),
        "today": setting(choice.today.setting),
        "best": setting(choice.best),
        "predicted_s": choice.predicted_s,
        "gain": span(choice.gain),
        "num_errors": choice.num_errors,
        "gpu_hours": span(choice.gpu_hours(ask.num_steps)),
        "num_steps": ask.num_steps,
        "pays_back_after_steps": choice.pays_back_after(ask.move_s),
        "untested": setting(untested[0]) | {"predicted_s": untested[1]} if untested else None,
        "definitions": DEFINITIONS,
    }  # fmt: skip


def _scaling(predictor: Predictor) -> dict[str, Any]:
    assert isinstance(predictor, Scaling)
    return {"rollout": vars(predictor.rollout), "train": vars(predictor.train), "rest_s": predictor.rest_s}
