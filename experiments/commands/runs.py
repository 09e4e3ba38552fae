"""`libra run` and `libra demo`: from a study's name to finished cells."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.commands.output import console, print_json, table, warnings_of
from experiments.launch import Launcher, Summary, launch
from experiments.progress import ProgressView
from libra.core.errors import ConfigError, TraceError, nearest_match
from libra.core.registry import Registry, StudyArgs, StudySpec
from libra.results.cell import Cell, parse_value
from libra.results.store import Store

OPTION_HEADS = ("policy.OPTION", "workload.OPTION", "pipeline.OPTION", "cluster.network", "sim.OPTION", "live.OPTION")

TRACES = Path("traces")
"""Where `libra run traces` looks for canonical traces when none is named."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    study: str
    store: Path
    seeds: int | None = None
    steps: int | None = None
    only: str | None = None
    changes: tuple[str, ...] = ()
    traces: tuple[Path, ...] = ()
    plugins: tuple[Path, ...] = ()
    policies: tuple[str, ...] = ()
    """Policies beside the study's own."""


def study_cells(request: Request, registry: Registry) -> list[Cell]:
    """Cells of a study after `--only`. Raises `ConfigError` for unknown names and for a selector that matches none."""
    from libra.results.selector import matches

    spec: StudySpec = registry.get("study", request.study)
    args = StudyArgs(request.seeds or spec.num_seeds, request.steps or spec.num_steps, _traces(request, spec))
    cells = [changed(cell, request.changes) for cell in _with_policies(spec.cells(args), request.policies, registry)]
    if request.only is not None and not request.only.strip():
        raise ConfigError("an empty selector", where="--only", mend="leave --only out to take every cell")
    chosen = cells if request.only is None else [cell for cell in cells if matches(cell, request.only)]
    if cells and not chosen:
        raise ConfigError(
            "no cell of the study matches",
            where="--only",
            value=request.only,
            mend=f"`libra run {spec.name} --dry-run`",
        )
    return chosen


def _with_policies(cells: Iterable[Cell], names: Sequence[str], registry: Registry) -> Iterator[Cell]:
    """A study's cells, and beside each first of its kind those of further policies. Raises `ConfigError`."""
    for name in names:
        registry.get("policy", name)
    met = set()
    for cell in cells:
        yield cell
        plain = {key: value for key, value in cell.overrides if not key.startswith("policy.")}
        kind = (cell.workload, cell.cluster, cell.model, cell.seed, tuple(plain.items()))
        if kind not in met:
            met.add(kind)
            for name in names:
                yield Cell.make(
                    cell.study, cell.workload, cell.cluster, cell.model, name, backend=cell.backend, seed=cell.seed,
                    overrides=plain,
                )  # fmt: skip


def _traces(request: Request, spec: StudySpec) -> tuple[Path, ...]:
    """Traces for a study: those named, else the recordings and those in `TRACES`.

    Raises `ConfigError` for what is no canonical trace.
    """
    from libra.workloads.recordings import NAMES, trace_path
    from libra.workloads.trace_file import read_trace

    if not spec.takes_traces:
        if request.traces:
            raise ConfigError(f"study {spec.name} takes no traces", where="--trace", value=str(request.traces[0]),
                              mend="`libra run traces --trace FILE` runs every system on a trace")  # fmt: skip
        return ()
    named = tuple(trace_path(name) for name in request.traces)
    for path in named:
        try:
            read_trace(path)
        except TraceError as error:
            if path.exists():
                error = TraceError(
                    f"no canonical trace: {error.what}",
                    where=str(path),
                    mend=f"`libra import auto {path} --out traces/NAME.jsonl.gz`, then name that file",
                )
            raise error from None
    imported = sorted(path for ending in ("*.jsonl.gz", "*.parquet") for path in TRACES.glob(ending))
    return named or (*map(trace_path, NAMES), *imported)


def changed(cell: Cell, changes: Sequence[str]) -> Cell:
    """A cell after `--set KEY=VALUE`: `cluster`, `model`, or a dotted override. Raises `ConfigError`."""
    overrides, places = dict(cell.overrides), {"cluster": cell.cluster, "model": cell.model}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not value:
            raise ConfigError("no KEY=VALUE", where="--set", value=change, mend="for example --set model=qwen3-8b")
        if key in places:
            places[key] = value
        elif "." not in key:
            near = nearest_match(key, places)
            raise ConfigError("unknown key", where="--set", value=key, allowed=(*places, *OPTION_HEADS), nearest=near)
        else:
            overrides[key] = parse_value(value)
    return Cell.make(
        cell.study,
        cell.workload,
        places["cluster"],
        places["model"],
        cell.policy,
        backend=cell.backend,
        seed=cell.seed,
        overrides=overrides,
    )


def run(
    request: Request,
    launcher: Launcher,
    workers: int,
    *,
    dry_run: bool,
    retry_failed: bool,
    as_json: bool,
) -> None:
    """Run a study; exit 1 when some cells failed, 130 when interrupted."""
    registry = Registry(request.plugins)
    cells = study_cells(request, registry)
    if dry_run:
        return _print_cells(cells, registry, as_json=as_json)
    summary = _launch(cells, request, registry, launcher, workers, retry_failed=retry_failed, quiet=as_json)
    if as_json:
        print_json({"outcomes": summary.outcomes, "reasons": summary.reasons})
    sys.exit(summary.exit_code)


def demo(root: Path, workers: int) -> None:
    """The demo study, then its report."""
    request = Request("demo", root)
    registry = Registry()
    summary = _launch(study_cells(request, registry), request, registry, "processes", workers)
    if summary.interrupted:
        sys.exit(summary.exit_code)
    from experiments.commands.results import demo_tables, report

    for each in demo_tables(root):
        console().print(each)
    report(root, Path("demo-report"))
    sys.exit(summary.exit_code)


def _launch(
    cells: Sequence[Cell],
    request: Request,
    registry: Registry,
    launcher: Launcher,
    workers: int,
    *,
    retry_failed: bool = False,
    quiet: bool = False,
) -> Summary:
    store = Store(request.store)
    screen = console(err=quiet)
    if not cells:
        screen.print(f"study {request.study} runs no cell; its table comes with `libra report`")
    num_workers = workers or os.cpu_count() or 1
    if any(cell.backend == "live" for cell in cells):
        launcher, num_workers = "inline", 1  # a live run takes the whole machine
    with ProgressView(screen) as view:
        summary = launch(
            cells,
            store,
            registry,
            launcher=launcher,
            workers=num_workers,
            retry_failed=retry_failed,
            on_progress=view,
        )
    parts = [
        f"{summary.count(outcome)} {outcome}"
        for outcome in ("done", "skipped", "failed", "failed before", "cancelled", "running elsewhere")
        if summary.count(outcome)
    ]
    screen.print(f"{request.study}: {', '.join(parts) or 'nothing to do'}; store {request.store}")
    paths = [store.path(id_) for id_, outcome in summary.outcomes.items() if outcome in ("done", "skipped")]
    for warning in dict.fromkeys(warning for path in paths for warning in warnings_of(path)):
        screen.print(f"note: {warning}")
    if summary.count("done"):
        screen.print("`libra report` compares the systems; `libra status STUDY` lists each cell's throughput")
    if summary.count("failed", "failed before"):
        screen.print("failed cells keep their reason and log: `libra show CELL`; run them again with --retry-failed")
    return summary


def _print_cells(cells: Sequence[Cell], registry: Registry, *, as_json: bool) -> None:
    """The dry run: every cell is resolved and every workload made, so a mistake in any of them shows now."""
    from experiments.resolve import Resolver

    resolver = Resolver(registry)
    rows, made = [], set()
    for cell in cells:
        setup = resolver.setup(cell)
        workload = (cell.workload, cell.model, tuple(cell.section("workload").items()))
        if cell.backend == "sim" and workload not in made:
            made.add(workload)
            setup.build_workload()
        rows.append((cell.identity(resolver.code(cell)), cell.label, setup.pipeline.kind, setup.cluster.num_gpus))
    if as_json:
        print_json([dict(zip(("id", "cell", "pipeline", "gpus"), row, strict=True)) for row in rows])
    else:
        console().print(table(f"{len(rows)} cells", ("id", "cell", "pipeline", "GPUs"), rows))
