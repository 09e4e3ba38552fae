"""`libra record`: what a cell played, as a canonical trace that can be played again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.commands.output import console
from libra.core.errors import ConfigError, StoreError
from libra.results.store import StoredCell


def record(found: StoredCell, out: Path, limit: int | None) -> None:
    """Write whole groups of trajectories that ended; with a limit, as many as fit, spread evenly over the run.

    Raises `StoreError`, `TraceError`, and `ConfigError` for a limit below one group.
    """
    from libra.runtime.event_log import LOG_NAME
    from libra.runtime.recorded import spread, trajectories, whole_groups
    from libra.runtime.replay import decisions
    from libra.workloads.trace_file import TraceHeader, check_suffix, write_trace

    check_suffix(out)
    ended = trajectories(decisions(found.path / LOG_NAME))
    rows = [row for row in ended if row.status != "aborted"]
    size = max((row.sample + 1 for row in rows), default=0)
    groups = whole_groups(rows, size)
    if not groups:
        raise StoreError("no whole group of trajectories has ended in this run", where=str(found.path))
    number = len(groups) if limit is None else limit // size
    if number == 0:
        raise ConfigError("less than a group", where="--limit", value=limit, mend=f"groups have {size} trajectories")
    chosen = spread(groups, number)
    kept = [row for group in chosen for row in group]
    cell = found.cell
    live = cell.backend == "live"
    notes = [_made(found)]
    if live:
        notes.append("Lengths change in the course of the run: the policy learned.")
    if len(chosen) < len(groups):
        notes.append(f"{len(chosen)} of {len(groups)} groups, spread evenly over the run; they keep their numbers.")
    header = TraceHeader(
        source=f"{'live' if live else 'simulated'} run of {cell.workload}, policy {cell.policy}, seed {cell.seed}, "
        f"model {cell.model}, cluster {cell.cluster}",
        token_counting="exact: the engine's own tokens" if live else "exact: the generator's",
        created_from=(f"cell {found.id}",),
        notes=tuple(notes),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, header, kept)
    console().print(f"{len(kept)} trajectories of {len(ended)} -> {out}", markup=False, highlight=False)


def _made(found: StoredCell) -> str:
    """When, from which code, on what machine and with which settings: all that the store knows of it."""
    import msgspec

    day = datetime.fromtimestamp(found.status.heartbeat, UTC).date()
    file = found.path / "provenance.json"
    known: dict[str, Any] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    git, cpus = known.get("git"), known.get("host", {}).get("num_cpus")
    commit = f" at commit {git['commit'][:12]}{' with uncommitted changes' if git['dirty'] else ''}" if git else ""
    settings = f" with {found.cell.variant}" if found.cell.variant else ""
    return f"Run of {day}{commit}{f' on {cpus} CPU cores' if cpus else ''}{settings}."
