"""`libra plan`: the split and layout for a job, from its stage times, a rollout dump or a workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.output import console, figure, print_json, table
from experiments.commands.plan_tables import (
    NODE_COLUMNS,
    PLAN_COLUMNS,
    node_rows,
    plan_row,
    rollout_of,
    seats_json,
    training_of,
)  # fmt: skip
from libra.core.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from libra.core.policy import Statistics
    from libra.core.records import Trajectory
    from libra.planning.ranking import Ranked, Ranking
    from libra.planning.stages import Advice, Option

PROFILE_GROUPS = 64
"""Prompts drawn from a workload's generator."""
PIPELINES = ("serial", "colocated", "barrier", "async")
NUM_RUNNERS_UP = 5
DEFINITIONS = {
    "step": "seconds from one update of the weights to the next, sync included",
    "serial": "rollout, then training; on separate GPUs or (colocated) on the same ones",
    "barrier": "one batch trains while the next is rolled out; both wait for the slower (one-step-off)",
    "idle": "share of a step in which a pool has nothing to do",
    "interval": "from perfect scaling of both stages to a serial share of 30 % in each (Amdahl)",
    "gain": "share of today's step that is saved; sure when the whole interval is above 0",
    "bound": "no split of the same GPUs is faster, however finely it moves them, at perfect scaling",
}


@dataclass(frozen=True)
class Times:
    """What the user measured; `gpus` is ROLLOUT:TRAIN, or one number for colocated stages."""

    rollout_s: float | None
    train_s: float | None
    gpus: str | None
    longest_s: float
    pipeline: str
    move_s: float


@dataclass(frozen=True)
class Job:
    """What is to be planned for: a workload's name or a dump, on a cluster."""

    workload: str | None
    source: Path | None
    cluster: str
    model: str
    pipeline: str
    batch: int | None


def plan_job(job: Job, *, emit: str = "", as_json: bool) -> None:
    """Best plan, runners-up, bound and mechanisms for the lengths of a workload or a dump; or settings, with `emit`."""
    from libra.clusters import load_cluster
    from libra.models import load_model
    from libra.planning.ranking import rank
    from libra.planning.search import JointPlanner

    pipeline = job.pipeline or "barrier"
    if pipeline not in PIPELINES[1:]:
        raise unknown_name("pipeline", pipeline, PIPELINES[1:])
    cluster, model = load_cluster(job.cluster), load_model(job.model)
    statistics, notes = _statistics(job, pipeline, model.max_context_tok)
    if emit:
        from libra.integrations.emit import Planned, settings

        best = JointPlanner(cluster, model).plan(statistics, None)
        return print(settings(emit, Planned(best, cluster, statistics.run)), end="")
    ranking = rank(JointPlanner(cluster, model), statistics)
    if as_json:
        return print_json(_ranking_json(ranking, notes) | {"placement": seats_json(ranking.best.plan, cluster)})
    screen = console()
    for line in (*_plan_lines(ranking, statistics), ""):
        screen.print(line, markup=False)
    screen.print(table("Plans", PLAN_COLUMNS, map(plan_row, _shown(ranking))))
    screen.print(table("Nodes of the best plan", NODE_COLUMNS, node_rows(ranking.best.plan, cluster)))
    screen.print()
    for line in _bought(ranking):
        screen.print(line, markup=False)
    for note in (*notes, ESTIMATE_NOTE):
        screen.print(f"note: {note}", markup=False)


def _statistics(job: Job, pipeline: str, limit_tok: int) -> tuple[Statistics, list[str]]:
    import msgspec

    from libra.core.events import PipelineSpec, RunStart
    from libra.core.policy import Finished, Statistics

    rows, batch, notes = _lengths(job, limit_tok)
    group = max((row.sample for row in rows), default=0) + 1
    spec = msgspec.convert({"kind": pipeline}, PipelineSpec)
    run = RunStart(0.0, job.cluster, job.model, spec, batch, group, 1, limit_tok)
    return Statistics(run, tuple(map(Finished.of, rows))), notes


def _lengths(job: Job, limit_tok: int) -> tuple[Sequence[Trajectory], int, list[str]]:
    """Trajectories, how many make a step, and what was assumed about them."""
    from libra.core.registry import Registry, parse_options

    if (job.workload is None) == (job.source is None):
        raise ConfigError("one source of lengths is needed", where="libra plan",
                          allowed=("a workload", "--from DUMP", "--rollout-s, --train-s and --gpus"))  # fmt: skip
    if job.workload is not None:
        spec = Registry().get("workload", job.workload)
        workload = spec.build(parse_options(spec.options, {}, f"workload {spec.name}"), 0, limit_tok)
        notes = [f"lengths are drawn from the generator of {spec.name}, at the start of its drift"]
        return workload.profile(PROFILE_GROUPS), job.batch or workload.batch, notes
    assert job.source is not None
    rows, notes = read_lengths(job.source, limit_tok)
    num_cut = sum(row.is_censored for row in rows)
    if num_cut:
        notes.append(f"{num_cut:,} of {len(rows):,} trajectories were cut off: their lengths are lower bounds")
    if job.batch is None:
        notes.append(f"a step is taken to be the dump's {len(rows):,} trajectories; --batch says otherwise")
    return rows, job.batch or len(rows), notes


def read_lengths(source: Path, limit_tok: int) -> tuple[tuple[Trajectory, ...], list[str]]:
    """Trajectories of a dump, a trace or a recording, and what was assumed. Raises `TraceError`."""
    from libra.workloads.trace_fit import Cleaning

    cleaning = Cleaning(str(source), limit_tok)
    rows = cleaning.fit(cleaning.fill(_read(source), 1.0, 600.0), "error")
    return rows, list(cleaning.warnings)


def _read(source: Path) -> tuple[Trajectory, ...]:
    """A recording by its name, a canonical trace, or a dump of any format."""
    from libra.workloads.importers import import_dump
    from libra.workloads.recordings import PREFIX, trace_path
    from libra.workloads.trace_file import is_trace, read_trace

    path = trace_path(source) if str(source).startswith(PREFIX) else source
    if is_trace(path):
        return read_trace(path)[1]
    return tuple(import_dump("auto", [source]).trajectories)


ESTIMATE_NOTE = "times are estimates from datasheet figures and assumed efficiencies, not corrected by a run of yours"


def _shown(ranking: Ranking) -> list[Ranked]:
    return list(ranking.plans[: NUM_RUNNERS_UP + 1])


def _plan_lines(ranking: Ranking, statistics: Statistics) -> list[str]:
    best, run = ranking.best.plan, statistics.run
    totals = sorted(each.total_tok for each in statistics.finished)
    lines = [
        f"Best plan for {run.model} on {run.cluster}, pipeline {run.pipeline.kind}, {run.batch:,} trajectories a step "
        f"(median {totals[len(totals) // 2]:,} tokens, longest {totals[-1]:,}):",
        f"  training {training_of(best)}; rollout {rollout_of(best)}{'; colocated' if best.colocated else ''}",
    ]
    if len(best.bounds_tok) > 1:
        lines.append(f"  buckets end at {', '.join(f'{bound:,}' for bound in best.bounds_tok)} tokens")
    lines.append(
        f"  step {figure(best.expected.step_s)} s; no plan of this cluster is below {figure(ranking.bound_s)} s by the "
        f"same estimate: within {ranking.gap:.1%} of the optimum"
    )
    train, engine = ranking.memory_left
    lines.append(f"  memory free: training {train:.0%}; rollout {engine:.0%} beside weights and one full sequence")
    return lines


def _bought(ranking: Ranking) -> list[str]:
    """One line a mechanism."""
    lines = ["What each mechanism saves of a step without it:"]
    for name, share in ranking.mechanisms.items():
        lines.append(f"  {name}   {share:+.1%}")
    return lines


def _ranking_json(ranking: Ranking, notes: list[str]) -> dict[str, Any]:
    import dataclasses

    import msgspec

    def of(ranked: Ranked) -> dict[str, Any]:
        found = dataclasses.asdict(ranked)
        return found | {"plan": msgspec.to_builtins(ranked.plan), "bound_by": ranked.bound_by}

    return {
        "best": of(ranking.best),
        "runners_up": [of(each) for each in ranking.plans[1 : NUM_RUNNERS_UP + 1]],
        "bound_s": ranking.bound_s,
        "gap": ranking.gap,
        "memory_left": {"training": ranking.memory_left[0], "rollout": ranking.memory_left[1]},
        "mechanisms": dict(ranking.mechanisms),
        "notes": [*notes, ESTIMATE_NOTE],
        "definitions": DEFINITIONS,
    }


def one_source(sources: Sequence[Path]) -> Path | None:
    """Raises `ConfigError` for several."""
    if len(sources) > 1:
        raise ConfigError("several sources of lengths", where="--from", value=len(sources),
                          mend="give one, or --backtest to compare runs")  # fmt: skip
    return sources[0] if sources else None


def refuse_lengths(workload: str | None, source: Path | None, emit: str) -> None:
    """Raises `ConfigError` for options that stage times have no use for."""
    if emit:
        raise ConfigError("stage times tell a split, not a layout that could be emitted", where="--emit", value=emit,
                          mend="give a workload or --from")  # fmt: skip
    if workload is not None or source is not None:
        raise ConfigError("lengths and stage times are two questions", where="libra plan",
                          mend="give a workload or --from, or --rollout-s, --train-s and --gpus")  # fmt: skip


def plan_times(times: Times, *, as_json: bool) -> None:
    """Raises `ConfigError` for figures that contradict one another."""
    from libra.planning.stages import Stages, advise

    if times.rollout_s is None or times.train_s is None or times.gpus is None:
        raise ConfigError(
            "stage times are incomplete", where="libra plan", allowed=("--rollout-s, --train-s and --gpus",),
            mend="for example: libra plan --rollout-s 2252 --train-s 1800 --gpus 16:16 --pipeline serial",
        )  # fmt: skip
    rollout, train, colocated = gpus_of(times.gpus)
    pipeline = times.pipeline or ("colocated" if colocated else "barrier")
    if pipeline not in PIPELINES:
        raise unknown_name("pipeline", pipeline, PIPELINES)
    if colocated and pipeline in ("barrier", "async"):
        raise ConfigError("stages on the same GPUs take turns", where="--pipeline", value=pipeline,
                          allowed=("colocated",), mend="give --gpus as ROLLOUT:TRAIN for separate pools")  # fmt: skip
    if not colocated and pipeline == "colocated":
        raise ConfigError("colocated stages have the same GPUs", where="--gpus", value=times.gpus,
                          mend="give one number, or another --pipeline")  # fmt: skip
    stages = Stages(times.rollout_s, times.train_s, rollout, train, colocated, longest_s=times.longest_s)
    is_serial = pipeline in ("serial", "colocated")
    advice = advise(stages, "serial" if is_serial else "overlapped")
    if as_json:
        return print_json(_json(advice, times.move_s))
    screen = console()
    for line in (*_answer(advice, times, is_serial=is_serial), ""):
        screen.print(line)
    screen.print(table("Splits", COLUMNS, _rows(advice)))
    screen.print()
    for line in (*_mechanisms(advice, stages.longest_s), "", *(f"{k}: {v}" for k, v in DEFINITIONS.items())):
        screen.print(line)


def gpus_of(text: str) -> tuple[int, int, bool]:
    """Rollout, training, colocated. Raises `ConfigError`."""
    parts = text.split(":")
    if not (len(parts) in (1, 2) and all(part.isdigit() and int(part) > 0 for part in parts)):
        allowed = ("ROLLOUT:TRAIN, for example 16:16", "one number when both use the same GPUs")
        raise ConfigError("no GPU counts", where="--gpus", value=text, allowed=allowed)
    return int(parts[0]), int(parts[-1]), len(parts) == 1


COLUMNS = ("", "rollout:training", "rollout s", "training s", "step s", "with poor scaling", "idle", "gain", "why")


def _rows(advice: Advice) -> Sequence[Sequence[object]]:
    shown = [("today", advice.today), *((("best", advice.best),) if advice.best is not advice.today else ())]
    others = [each for each in advice.options if each not in (advice.best, advice.today)]
    shown += [("", each) for each in others[:NUM_RUNNERS_UP]]
    return [
        (
            name, split_of(each), figure(each.rollout_s), figure(each.train_s), figure(each.step_s),
            f"{figure(each.step.low)} to {figure(each.step.high)}",
            "" if each.colocated else f"{each.rollout_idle:.0%} : {each.train_idle:.0%}",
            f"{each.gain.low:+.0%} to {each.gain.high:+.0%}", "" if name else _why(each, advice),
        )
        for name, each in shown
    ]  # fmt: skip


def split_of(option: Option) -> str:
    return f"{option.rollout_gpus} colocated" if option.colocated else f"{option.rollout_gpus}:{option.train_gpus}"


def _why(option: Option, advice: Advice) -> str:
    """Why it lost."""
    if option.colocated:
        return "the stages take turns"
    stage = "rollout" if option.rollout_s > option.train_s else "training"
    if option.step_s < advice.best.step_s:
        return f"faster only at perfect scaling; bound by {stage}"
    return f"bound by {stage}"


def _answer(advice: Advice, times: Times, *, is_serial: bool) -> list[str]:
    today, best = advice.today, advice.best
    lines = []
    if best is today:
        lines.append(f"Stay at {split_of(today)}: no split in steps of {advice.unit} GPUs gains for sure.")
        fastest = advice.options[0]
        if fastest.step_s < today.step_s * 0.99:
            lines.append(
                f"At perfect scaling {split_of(fastest)} would take {figure(fastest.step_s)} s instead of "
                f"{figure(today.step_s)} s; at poor scaling it gains {fastest.gain.low:+.0%}. Try it for a few steps."
            )
    else:
        where = f"Move from {split_of(today)} to {split_of(best)}"
        if split_of(today) == split_of(best):
            where = f"Keep {split_of(best)}"
        overlap = " and overlap the stages" if is_serial and not best.colocated else ""
        lines.append(
            f"{where}{overlap}: {figure(today.step_s)} s -> "
            f"{figure(best.step_s)} s a step, {best.gain.low:.0%} to {best.gain.high:.0%} saved."
        )
        steps = advice.pays_back_after(times.move_s)
        plural = "s" * (steps != 1)
        lines.append(
            f"A move that stalls the job for {figure(times.move_s)} s is paid back after {steps} step{plural}."
        )
    lines.append(
        f"Bound: {figure(advice.bound_s)} s a step on these GPUs; the recommendation is within {advice.gap:.0%} of it."
    )
    return lines


def _mechanisms(advice: Advice, longest_s: float) -> list[str]:
    """What each mechanism could save of today's step at most."""
    today, unit = advice.today, advice.unit
    overlapped = [each for each in advice.options if not each.colocated]
    same = max(today.rollout_s, today.train_s)
    lines = ["What each mechanism would buy, at perfect scaling (share of today's step):"]
    if not today.colocated:
        lines.append(f"  overlapping the stages on today's split   {max(0.0, 1 - same / today.step_s):.0%}")
    lines.append(f"  the best split in steps of {unit} GPUs, overlapped   "
                 f"{max(0.0, 1 - overlapped[0].step_s / today.step_s):.0%}")  # fmt: skip
    lines.append(f"  moving GPUs between the pools within a step, at most   {1 - advice.bound_s / today.step_s:.0%}")
    tail = (
        f"rollout waits {figure(longest_s)} s for the longest trajectory" if longest_s else "unknown; give --longest-s"
    )
    lines.append(f"  a shorter tail (routing, larger instances)   {tail}")
    return lines


def _json(advice: Advice, move_s: float) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "today": asdict(advice.today),
        "best": asdict(advice.best),
        "stay": advice.best is advice.today,
        "options": [asdict(each) for each in advice.options],
        "bound_s": advice.bound_s,
        "gap": advice.gap,
        "unit_gpus": advice.unit,
        "move_s": move_s,
        "pays_back_after_steps": advice.pays_back_after(move_s),
        "definitions": DEFINITIONS,
    }
