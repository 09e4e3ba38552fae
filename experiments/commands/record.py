"""`libra record`: what a cell played, as a canonical trace that can be played again."""

from __future__ import annotations

from pathlib import Path

from experiments.commands.output import console
from libra.core.errors import StoreError
from libra.results.store import StoredCell


def record(found: StoredCell, out: Path, limit: int | None) -> None:
    """Write whole groups of trajectories that ended, `limit` at most. Raises `StoreError` and `TraceError`."""
    from libra.runtime.event_log import LOG_NAME
    from libra.runtime.recorded import trajectories, whole_groups
    from libra.runtime.replay import decisions
    from libra.workloads.trace_file import TraceHeader, check_suffix, write_trace

    check_suffix(out)
    rows = [row for row in trajectories(decisions(found.path / LOG_NAME)) if row.status != "aborted"]
    sizes = [row.sample + 1 for row in rows]
    if not sizes:
        raise StoreError("no trajectory has ended in this run", where=str(found.path))
    kept = [row for group in whole_groups(rows, max(sizes)) for row in group][:limit]
    cell = found.cell
    live = cell.backend == "live"
    header = TraceHeader(
        source=f"{'live' if live else 'simulated'} run of {cell.workload}, policy {cell.policy}, seed {cell.seed}, "
        f"model {cell.model}, cluster {cell.cluster}",
        token_counting="exact: the engine's own tokens" if live else "exact: the generator's",
        created_from=(f"cell {found.id}",),
        notes=("Lengths change in the course of the run: the policy learned.",) if live else (),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_trace(out, header, kept)
    console().print(f"{len(kept)} trajectories of {len(rows)} -> {out}", markup=False, highlight=False)
