"""The store as tables: one tidy frame of metrics, and DuckDB over the parquet files of many cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from analysis.names import PLAIN_STUDIES
from libra.results.cell import LENGTH_KEY
from libra.results.store import Store, StoredCell

CELL_COLUMNS = (
    "id", "study", "workload", "cluster", "model", "policy", "backend", "variant", "seed", "num_steps", "pipeline",
    "status",
)  # fmt: skip

TEXT_COLUMNS = tuple(name for name in (*CELL_COLUMNS, "metric") if name not in ("seed", "num_steps"))


def workload_name(name: str) -> str:
    """`trace:/data/tau.jsonl.gz` -> `trace:tau.jsonl.gz`; other names as they are."""
    return f"trace:{Path(name.removeprefix('trace:')).name}" if name.startswith("trace:") else name


def planned_steps(cell: StoredCell) -> int:
    """Training steps that the cell was asked to simulate; 0 where the workload's own default holds."""
    return int(cell.cell.override(LENGTH_KEY) or 0)


def cell_row(cell: StoredCell) -> dict[str, object]:
    """The identifying columns of a cell."""
    pipeline = cell.facts.get("pipeline") or cell.cell.override("pipeline.kind") or "barrier"
    return {
        "id": cell.id,
        "study": cell.cell.study,
        "workload": workload_name(cell.cell.workload),
        "cluster": cell.cell.cluster,
        "model": cell.cell.model,
        "policy": cell.cell.policy,
        "backend": cell.cell.backend,
        "variant": cell.cell.variant,
        "seed": cell.cell.seed,
        "num_steps": planned_steps(cell),
        "pipeline": pipeline,
        "status": cell.status.state,
    }


@dataclass(frozen=True)
class Cells:
    """The cells that a reader compares, and what was left out of them."""

    cells: tuple[StoredCell, ...]
    notes: tuple[str, ...] = ()

    def of(self, study: str) -> list[StoredCell]:
        """Cells of one study, in its order."""
        return [cell for cell in self.cells if cell.cell.study == study]

    @property
    def table(self) -> pd.DataFrame:
        """Their metrics, as `metrics_table` gives them."""
        return metrics_table(self.cells)


def comparable_cells(store: Store) -> Cells:
    """Of each study the cells of one kind: cluster, model, training steps, and variant where the study has only one.

    That of most finished cells (of all, where none finished); among equals the longest. Runs of another length cover
    the drift otherwise, and `--set` may have made others, so policies must not be paired across kinds.
    """
    kept: list[StoredCell] = []
    notes = []
    for study in store.studies():
        cells = store.cells(study)
        done = [cell for cell in cells if cell.status.state == "done"] or cells
        length = max((planned_steps(cell) for cell in done), default=0)
        counts = Counter(_kind(cell) for cell in done if planned_steps(cell) == length)
        if not counts:
            continue
        shown = max(counts, key=lambda kind: (counts[kind], -len(kind[3]), kind))
        same = [cell for cell in cells if _kind(cell) == shown]
        kept += same
        others = sorted({_kind(cell) for cell in cells} - {shown})
        if others:
            notes.append(
                f"Study {study}: {len(cells) - len(same)} cells with {'; '.join(map(_words, others))} are left out; "
                f"the {len(same)} cells with {_words(shown)} are shown. Another --store keeps them apart."
            )
    return Cells(tuple(kept), tuple(notes))


def _kind(cell: StoredCell) -> tuple[int, str, str, str]:
    variant = cell.cell.variant if cell.cell.study in PLAIN_STUDIES else ""
    return planned_steps(cell), cell.cell.cluster, cell.cell.model, variant


def _words(kind: tuple[int, str, str, str]) -> str:
    steps, cluster, model, variant = kind
    return ", ".join([f"{steps} steps", model, cluster, *([variant] if variant else [])])


def metrics_table(cells: Iterable[StoredCell]) -> pd.DataFrame:
    """One row a metric of a cell (CELL_COLUMNS, metric, value); a cell without metrics has one row with metric None."""
    rows: list[dict[str, object]] = []
    for cell in cells:
        row = cell_row(cell)
        values: Mapping[Any, float | None] = cell.metrics or {None: None}
        rows.extend({**row, "metric": metric, "value": value} for metric, value in values.items())
    table = pd.DataFrame(rows, columns=[*CELL_COLUMNS, "metric", "value"])
    return table.astype(dict.fromkeys(TEXT_COLUMNS, object))  # figures compare them thousands of times


def parquet_rows(cells: Sequence[StoredCell], table: str, columns: str) -> pd.DataFrame:
    """Rows of one parquet table (`steps`, `trajectories`, `decisions`) of finished cells, with CELL_COLUMNS in front.

    `columns` is a SQL select list over the table's columns. Rows stand in the order of `cells` and then of the file,
    so that sums over them are equal from run to run.
    """
    done = [cell for cell in cells if cell.status.state == "done"]
    if not done:
        return pd.DataFrame(columns=list(CELL_COLUMNS))
    keys = pd.DataFrame(
        [{**cell_row(cell), "file": str(cell.path / f"{table}.parquet"), "place": n} for n, cell in enumerate(done)]
    )
    with duckdb.connect() as connection:
        connection.register("cells", keys)
        return connection.execute(
            "with p as (select *, filename as source "
            "from read_parquet($files, filename = true, file_row_number = true)) "
            f"select c.* exclude (file, place), {columns} from p join cells c on c.file = p.source "
            "order by c.place, p.file_row_number",
            {"files": keys["file"].tolist()},
        ).df()
