"""`libra import|replay|trace`: dumps in, event logs checked, timelines out."""

from __future__ import annotations

import sys
from pathlib import Path

from experiments.commands.output import console, print_json, table
from libra.core.registry import Registry

EXIT_CHECK_FAILED = 3


def import_(format_name: str, files: list[Path], out: Path, *, as_json: bool) -> None:
    """Read dumps, write a canonical trace, and say what could not be read."""
    import msgspec

    from libra.workloads.importers import import_dump
    from libra.workloads.trace_file import write_trace

    result = import_dump(format_name, files)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, result.header, result.trajectories)
    if as_json:
        return print_json(msgspec.to_builtins(result.report))
    screen = console()
    screen.print(f"{len(result.trajectories)} trajectories -> {out}")
    for line in result.report.lines():
        screen.print(line, markup=False)


def replay(cell_id: str, root: Path, plugins: tuple[Path, ...], *, as_json: bool) -> None:
    """Compare the commands of a fresh policy with the recorded ones; exit 3 when they differ."""
    from experiments.run import build_policy
    from libra.results.store import Store
    from libra.runtime.replay import replay as replay_cell

    cell = Store(root, create=False).find(cell_id)
    report = replay_cell(cell.path, lambda: build_policy(cell.cell, Registry(plugins)))
    if as_json:
        print_json(report.to_dict())
    else:
        console().print(report.text(), markup=False)
    if not report.same:
        sys.exit(EXIT_CHECK_FAILED)


def trace(cell_id: str, root: Path, out: Path | None) -> None:
    """Write a Perfetto timeline."""
    from libra.results.store import Store
    from libra.runtime.perfetto import write_perfetto

    cell = Store(root, create=False).find(cell_id)
    target = out or Path(f"{cell.id}.perfetto.json.gz")
    target.parent.mkdir(parents=True, exist_ok=True)
    num_spans = write_perfetto(cell.path, target)
    console().print(table("", ("file", "spans", "open with"), [(target, num_spans, "https://ui.perfetto.dev")]))
