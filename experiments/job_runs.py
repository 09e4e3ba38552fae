"""Runs of a job, as `libra plan --backtest` reads them: cells of a store, tables of steps, descriptions of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import get_args

import msgspec
import numpy as np
from pydantic import Field

from libra.core.errors import ConfigError, StoreError, TraceError, unknown_name
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.policy import Finished, Statistics
from libra.core.registry import Options, parse_options
from libra.core.toml_files import read_toml
from libra.planning.predictors import IN_TURN, Job, Pipeline, Run, Setting, StageTimes, stages_s
from libra.results.summary import steady_window
from libra.workloads.step_log import MEND, SUFFIXES, TIMES, StepLine, read_steps

SLACK = 0.02
"""Share by which a step may be shorter than its stages: clocks and rounding (assumed)."""
NEEDED = ("a cell (runs/cells/ID)", "a study (runs/studies/NAME.json)", "steps (.csv, .json, .jsonl)", "a run (.toml)")


@dataclass(frozen=True)
class Made:
    """A run with what it was read from; `ended_s` is Unix time, 0 where the source does not tell."""

    run: Run
    origin: str
    model: str
    cluster: str
    num_steps: int
    network: str = ""
    ended_s: float = 0.0


class RunFile(Options):
    """A run that no table of steps describes alone. Paths are from the file's folder."""

    steps: str
    """Table of steps, or verl's file log."""
    gpus: str = ""
    """ROLLOUT:TRAIN, or one number for colocated stages; where the steps do not say."""
    pipeline: str = ""
    model: str = ""
    cluster: str = ""
    lengths: str = ""
    """A dump or trace of what was rolled out; with `train` and `engines` it lets the planner's estimate judge."""
    batch: int = 0
    """Trajectories a step; 0 takes the dump for one step."""
    train: dict[str, int] = Field(default_factory=dict)
    """Degrees of parallelism: tp, dp, pp, cp, ep."""
    engines: str = ""
    """Tensor-parallel sizes of the rollout engines, e.g. 4+4+2+2."""


def read_runs(sources: Sequence[Path], pipeline: str) -> list[Made]:
    """All runs; cells in the order in which they ended, others as given.

    Raises `ConfigError` for runs that cannot be compared, and for what holds no step times.
    """
    made = [each for source in sources for each in _read(source, pipeline)]
    if all(each.ended_s for each in made):
        made.sort(key=lambda each: each.ended_s)
    _check_one(made, "model", [each.model for each in made])
    _check_one(made, "cluster", [each.cluster + each.network for each in made])
    _check_one(made, "pipeline", [each.run.setting.pipeline for each in made])
    _check_one(made, "kind of source", ["steps alone" if m.run.setting.job is None else "a layout" for m in made])
    _check_twice(made)
    return made


def _check_one(made: Sequence[Made], what: str, values: Sequence[str]) -> None:
    if len(set(values)) > 1:
        shown = ", ".join(f"{each.origin}: {value or 'not said'}" for each, value in zip(made, values, strict=True))
        raise ConfigError(f"runs differ in their {what}, so one tells nothing of another", where="--from",
                          value=shown[:300], mend=f"give runs of one {what}")  # fmt: skip


def _check_twice(made: Sequence[Made]) -> None:
    seen: dict[object, str] = {}
    for each in made:
        key = each.run.measured, each.run.setting.tokens, each.run.setting.layout
        if key in seen:
            raise ConfigError("the same run twice: a copy would pass for a blind prediction", where=each.origin,
                              value=seen[key], mend="give each run once")  # fmt: skip
        seen[key] = each.origin


def _read(source: Path, pipeline: str) -> Iterator[Made]:
    from experiments.stored_runs import of_cell, of_study

    if (source / "cell.json").is_file():
        yield of_cell(source)
    elif source.parent.name == "studies" and (source.parent.parent / "store.json").is_file():
        yield from of_study(source)
    elif source.suffix == ".toml":
        yield from _described(source, pipeline)
    elif source.suffix in SUFFIXES:
        yield from _tabled(source, read_steps(source), RunFile(steps=str(source), pipeline=pipeline))
    elif not source.exists() and not str(source).startswith("recorded:"):
        raise StoreError("no such file or folder", where=str(source), allowed=NEEDED)
    else:
        raise TraceError(
            "this source has no step times, no GPU counts and no layout, so there is nothing to hold a prediction to",
            where=str(source), allowed=NEEDED,
            mend=f"write the steps down ({MEND}), or name dump and steps in a run file; docs/backtest.md has both",
        )  # fmt: skip


def _described(path: Path, pipeline: str) -> Iterator[Made]:
    described = parse_options(RunFile, read_toml("run", path), str(path))
    if pipeline and described.pipeline and described.pipeline != pipeline:
        raise ConfigError("the run says another pipeline", where=str(path), value=described.pipeline,
                          mend="leave --pipeline out")  # fmt: skip
    described = described.model_copy(update={"pipeline": described.pipeline or pipeline})
    steps = path.parent / described.steps
    made = list(_tabled(path, read_steps(steps), described))
    if len(made) > 1:
        raise ConfigError("a run file describes one run", where=str(steps), value=f"{len(made)} runs",
                          mend="give the table itself, or one run file a run")  # fmt: skip
    yield from made


def _tabled(path: Path, lines: Sequence[StepLine], described: RunFile) -> Iterator[Made]:
    """Runs of a table, in its order."""
    for name, group in groupby(lines, key=lambda line: line.run):
        yield _of_lines(path, name, tuple(group), described)


def _of_lines(path: Path, name: str, lines: tuple[StepLine, ...], described: RunFile) -> Made:
    origin = f"{path}{f' run {name}' if name else ''}"
    fixed = {(line.gpus_rollout, line.gpus_train, line.pipeline, line.model) for line in lines}
    if len(fixed) > 1:
        raise TraceError("GPUs, pipeline or model change within a run", where=origin,
                         mend="name the parts in a column `run`")  # fmt: skip
    rollout, train, said, model = fixed.pop()
    if not (rollout and train):
        rollout, train, said = _given(origin, described)
    pipeline = _pipeline(origin, said or described.pipeline, rollout, train)
    first, past = steady_window(len(lines))
    kept = lines[first:past]
    means = (float(np.mean([getattr(line, key) for line in kept])) for key in TIMES)
    measured = StageTimes(*means)
    _check_step(origin, pipeline, measured)
    setting = Setting(
        name or path.stem, rollout, train, pipeline, float(np.mean([line.tokens for line in kept])),
        _job(path, described, rollout, train, pipeline),
    )  # fmt: skip
    return Made(Run(setting, measured), origin, model or described.model, described.cluster, len(kept))


def _given(origin: str, described: RunFile) -> tuple[int, int, str]:
    from experiments.commands.plan_stages import gpus_of

    if not described.gpus:
        raise ConfigError("the steps do not say on how many GPUs each stage ran", where=origin,
                          mend='describe the run in a file: steps = "FILE" and gpus = "ROLLOUT:TRAIN"')  # fmt: skip
    rollout, train, colocated = gpus_of(described.gpus)
    return rollout, train, "colocated" if colocated else ""


def _pipeline(origin: str, name: str, rollout: int, train: int) -> Pipeline:
    found = name or "barrier"
    if found not in get_args(Pipeline):
        raise unknown_name("pipeline", found, get_args(Pipeline), where=origin)
    if found == "colocated" and rollout != train:
        raise ConfigError("colocated stages have the same GPUs", where=origin, value=f"{rollout}:{train}")
    return found  # type: ignore[return-value]


def _check_step(origin: str, pipeline: Pipeline, measured: StageTimes) -> None:
    stages = stages_s(pipeline, measured.rollout_s, measured.train_s)
    if measured.step_s < stages * (1 - SLACK):
        how = "the sum" if pipeline in IN_TURN else "the slower"
        raise ConfigError(
            f"a {pipeline} step is at least {how} of its stages, {stages:.4g} s", where=origin,
            value=f"step_s {measured.step_s:.4g}", mend="check the pipeline, and that stages are times of one step",
        )  # fmt: skip


def _job(path: Path, described: RunFile, rollout: int, train: int, pipeline: Pipeline) -> Job | None:
    """The layout and lengths of a run file; None where it gives neither."""
    parts = {"lengths": described.lengths, "train": described.train, "engines": described.engines}
    missing = [name for name, value in parts.items() if not value]
    if len(missing) == len(parts):
        return None
    missing += [name for name in ("model", "cluster") if not getattr(described, name)]
    if missing:
        raise ConfigError(f"a layout without its {' and its '.join(missing)}", where=str(path),
                          mend="give lengths, train, engines, model, cluster, or none of the first three")  # fmt: skip
    from libra.models import load_model

    limit_tok = load_model(described.model).max_context_tok
    plan = _layout(path, described, limit_tok, colocated=pipeline == "colocated")
    if (plan.rollout_gpus, plan.train.num_gpus) != (rollout, train):
        raise ConfigError("layout and GPU counts contradict each other", where=str(path),
                          value=f"{plan.rollout_gpus}:{plan.train.num_gpus} against {rollout}:{train}")  # fmt: skip
    from experiments.commands.plan import read_lengths

    rows, _ = read_lengths(path.parent / described.lengths, limit_tok)
    kind = "barrier" if pipeline == "serial" else pipeline
    batch = described.batch or len(rows)
    run = RunStart(0.0, described.cluster, described.model, PipelineSpec(kind), batch, 1, 1, limit_tok)
    return Job(plan, Statistics(run, tuple(map(Finished.of, rows))))


def _layout(path: Path, described: RunFile, limit_tok: int, *, colocated: bool) -> Plan:
    unknown = [name for name in described.train if name not in TrainLayout.__struct_fields__]
    if unknown:
        raise unknown_name("degree", unknown[0], TrainLayout.__struct_fields__, where=f"{path} [train]")
    try:
        train = msgspec.convert(described.train, TrainLayout)
        sizes = [int(size) for size in described.engines.split("+")]
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"no layout: {error}", where=str(path),
                          mend='for example: train = {tp = 4, dp = 4} and engines = "4+4+4+4"') from None  # fmt: skip
    engines = tuple(InstanceSpec(number, size) for number, size in enumerate(sizes))
    return Plan(train, engines, (limit_tok,), colocated=colocated)
