"""`libra plan`: the split and layout for a job, from its stage times, a rollout dump or a workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.commands.output import console, figure, print_json, table
from experiments.commands.plan_stages import DEFINITIONS, NUM_RUNNERS_UP, PIPELINES
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

PROFILE_GROUPS = 64
"""Prompts drawn from a workload's generator."""


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
