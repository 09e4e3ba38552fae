"""The learning curve of a live run, from verl's metrics: rewards of training and of held-out tasks, by step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from libra.results.atomic import write_bytes
from libra.results.store import CellDir

NAMES = {
    "critic/score/mean": "train_reward",
    "actor/grad_norm": "grad_norm",
    "actor/ppo_kl": "kl",
    "actor/pg_clipfrac": "clip_share",
    "libra/logprob_gap_max": "logprob_gap_max",
    "training/off_policy/trajectory_staleness_worst/max": "staleness_max",
}
"""verl's names and ours."""


METRICS, EARLIER = "metrics.jsonl", "metrics_before.jsonl"
"""What verl logs since its last start, and what it had logged by the checkpoint that it started from."""


def entries(folder: Path) -> Iterator[dict[str, Any]]:
    """What verl has logged so far: `step` and `data`. A last line that is being written is left out."""
    for name in (EARLIER, METRICS):
        path = folder / name
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
            yield json.loads(line)


def keep_metrics(folder: Path, step: int) -> None:
    """Before verl starts from a checkpoint: its log starts anew, and what came after that step did not happen."""
    kept = [json.dumps(entry) + "\n" for entry in entries(folder) if int(entry["step"]) <= step]
    write_bytes(folder / EARLIER, "".join(kept).encode())
    (folder / METRICS).unlink(missing_ok=True)


def read_curve(folder: Path) -> list[dict[str, float]]:
    """One row per step that verl logged, 0 before training; a value that a step lacks is left out."""
    rows: dict[int, dict[str, float]] = {}
    for entry in entries(folder):
        rows.setdefault(int(entry["step"]), {}).update(_row(entry["data"]))
    return [{"step": step, **rows[step]} for step in sorted(rows)]


def _row(data: dict[str, Any]) -> dict[str, float]:
    row = {ours: float(data[theirs]) for theirs, ours in NAMES.items() if theirs in data}
    held_out = [value for name, value in data.items() if name.startswith("val-") and name.endswith("reward/mean@1")]
    return row | ({"held_out_reward": float(held_out[0])} if held_out else {})


def write_curve(folder: Path, cell_dir: CellDir) -> None:
    """`curve.json` of a cell."""
    cell_dir.write_json("curve.json", read_curve(folder))
