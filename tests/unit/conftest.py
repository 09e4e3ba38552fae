"""A store with made-up results in the real file formats: each cell's throughput is the number that a test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libra.core.events import PipelineSpec
from libra.results.cell import Cell
from libra.results.provenance import summary_fingerprint
from libra.results.schemas import DecisionRow, Facts, StepRow, TrajectoryRow
from libra.results.store import Metrics, State, Store
from libra.results.summary import summarise
from libra.results.tables import table_of, to_parquet

STEP_S = 100.0
CODE = "madeup00madeup00"


@pytest.fixture
def made_cell() -> Callable[..., Cell]:
    """A cell by keywords, with sensible defaults."""

    def make(**given: Any) -> Cell:
        steps = given.pop("num_steps", 2)
        overrides = {"workload.num_steps": steps, **given.pop("overrides", {})}
        names = {"study": "end_to_end", "workload": "r2e-gym", "cluster": "a800x48", "model": "qwen3-14b", **given}
        return Cell.make(**names, overrides=overrides)

    return make


@pytest.fixture
def made_store(tmp_path: Path) -> Callable[..., Store]:
    """A store of (cell, token/s) pairs; a state in place of the rate stores a cell that ended so."""

    def make(cells: Iterable[tuple[Cell, float | State]] = (), code: str = CODE, root: str = "store") -> Store:
        store = Store(tmp_path / root)
        pairs = list(cells)
        for study in dict.fromkeys(cell.study for cell, _ in pairs):
            store.add_to_study(study, [(cell, code) for cell, _ in pairs if cell.study == study])
        for cell, result in pairs:
            _write(store, cell, code, result)
        return store

    return make


def _write(store: Store, cell: Cell, code: str, result: float | State) -> None:
    with store.claim(cell, code) as folder:
        if result == "pending":
            return
        folder.start()
        if isinstance(result, str):
            folder.set(result, "made-up reason\nsecond line")
            return
        tables = _tables(int(cell.override("workload.num_steps") or 1), result)
        facts = Facts(48, PipelineSpec())
        found = summarise(*tables.values(), facts)
        for name, table in tables.items():
            folder.write(f"{name}.parquet", to_parquet(table))
        git = {"commit": "0123456789abcdef", "dirty": False}
        folder.write_json("provenance.json", {"git": git, "python": "3.11.0", "packages": {"made-up": "1.0"}})
        folder.write_json("timing.json", {"wall_s": 2.0})
        folder.write_json("metrics.json", Metrics(found.metrics, found.absent, facts, summary_fingerprint()))
        folder.set("done")


def _tables(num_steps: int, tok_per_s: float) -> dict[str, Any]:
    """Two trajectories a step of `STEP_S`, so that tokens over time is the wanted rate."""
    tok = round(tok_per_s * STEP_S / 2)
    steps, trajectories, decisions = [], [], []
    for step in range(num_steps):
        start_s, end_s = step * STEP_S, (step + 1) * STEP_S
        steps.append(
            _row(StepRow, step=step, start_s=start_s, end_s=end_s, rollout_s=80.0, rollout_90_s=60.0, train_s=20.0,
                 num_trajectories=2, generated_tok=2 * tok, max_total_tok=tok, train_gpus=16, rollout_gpus=32,
                 rollout_pool_gpu_s=32 * STEP_S, train_pool_gpu_s=16 * STEP_S,
                 rollout_busy_gpu_s=1600.0, train_busy_gpu_s=320.0)
        )  # fmt: skip
        for sample in range(2):
            number = 2 * step + sample
            trajectories.append(
                _row(TrajectoryRow, trajectory=number, prompt_id="p", sample=sample, trained_step=step,
                     status="completed", generated_tok=tok, num_turns=1, reward=0.5, start_s=start_s,
                     end_s=start_s + 40.0 * (sample + 1), prefilled_tok=1)
            )  # fmt: skip
            decisions.append(_row(DecisionRow, t_s=start_s, trajectory=number, from_instance=-1, level="none"))
    kinds = {
        "steps": (steps, StepRow),
        "trajectories": (trajectories, TrajectoryRow),
        "decisions": (decisions, DecisionRow),
    }
    return {name: table_of(rows, kind) for name, (rows, kind) in kinds.items()}


def _row(kind: type[msgspec.Struct], **given: Any) -> Any:
    """A row with zeros and empty text where nothing is given."""
    blank = {field.name: "" if field.type is str else 0.0 if field.type is float else 0
             for field in msgspec.structs.fields(kind)}  # fmt: skip
    return kind(**{**blank, **given})
