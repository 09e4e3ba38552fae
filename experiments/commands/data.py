"""`libra import|replay|trace|data`: dumps and data sets in, event logs checked, timelines out."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experiments.commands.output import console, print_json
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import Registry

EXIT_CHECK_FAILED = 3


def import_(format_name: str, files: list[Path], out: Path, *, as_json: bool) -> None:
    """Read dumps, write a canonical trace, and say what could not be read."""
    import msgspec

    from libra.core.errors import TraceError
    from libra.workloads.importers import import_dump
    from libra.workloads.trace_file import check_suffix, write_trace

    check_suffix(out)
    result = import_dump(format_name, files)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(f"no folder can be made there: {error.strerror}", where=str(out.parent)) from error
    write_trace(out, result.header, result.trajectories)
    if as_json:
        return print_json(msgspec.to_builtins(result.report))
    screen = console()
    for line in [f"{len(result.trajectories):,} trajectories -> {out}", *result.report.lines()]:
        screen.print(line, markup=False, highlight=False, soft_wrap=True)


def replay(cell_id: str, root: Path, plugins: tuple[Path, ...], *, as_json: bool) -> None:
    """Compare the commands of a fresh policy with the recorded ones; exit 3 when they differ."""
    from experiments.resolve import Resolver
    from libra.results.store import Store
    from libra.runtime.replay import replay as replay_cell

    cell = Store(root, create=False).find(cell_id)
    registry = Registry(plugins)
    if cell.cell.policy not in registry.all("policy"):
        raise ConfigError(
            "the policy of this cell is not installed",
            where=cell.id,
            value=cell.cell.policy,
            mend="it came from a plug-in: name that again with --plugin",
        )
    report = replay_cell(cell.path, Resolver(registry).setup(cell.cell).build_policy)
    recorded = _num_recorded(cell.path)
    if report.same and recorded is not None and report.num_events < recorded:
        raise StoreError(
            f"the event log is cut off: {report.num_events} of {recorded} events are there, and agree",
            where=str(cell.path),
            mend="run the cell again: delete its folder, then `libra run`",
        )
    counts = f"{report.num_events} events, {report.num_commands} commands"
    if as_json:
        difference = None if report.difference is None else str(report.difference)
        print_json({"same": report.same, "events": report.num_events, "commands": report.num_commands,
                    "difference": difference})  # fmt: skip
    elif report.same:
        console().print(f"same: {counts} compared")
    else:
        console().print(f"different after {counts}\n{report.difference}", markup=False)
    if not report.same:
        sys.exit(EXIT_CHECK_FAILED)


def _num_recorded(cell_dir: Path) -> int | None:
    """Events that the run counted when it ended; None for a run that did not."""
    timing = cell_dir / "timing.json"
    return int(json.loads(timing.read_bytes())["counts"]["num_events"]) if timing.exists() else None


def trace(cell_id: str, root: Path, out: Path | None) -> None:
    """Write a Perfetto timeline."""
    from libra.results.store import Store
    from libra.runtime.perfetto import write_perfetto

    cell = Store(root, create=False).find(cell_id)
    target = out or Path(f"{cell.id}.perfetto.json.gz")
    target.parent.mkdir(parents=True, exist_ok=True)
    num_spans = write_perfetto(cell.path, target)
    console().print(f"{target}: {num_spans} spans; open it at https://ui.perfetto.dev")


def prepare(workload: str, out: Path, *, dry_run: bool) -> None:
    """Download and convert a public data set; what is there already is kept."""
    from libra.workloads.environments.prepare import HuggingFaceHub, plan
    from libra.workloads.environments.prepare import prepare as prepare_data

    screen = console()
    if dry_run:
        for line in plan(workload):
            screen.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    prepare_data(
        workload, out, HuggingFaceHub(), lambda line: screen.print(line, markup=False, highlight=False, soft_wrap=True)
    )
