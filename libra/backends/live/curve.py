"""The learning curve of a live run, from verl's metrics: rewards of training and of held-out tasks, by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def read_curve(path: Path) -> list[dict[str, float]]:
    """One row per step that verl logged, 0 before training; a value that a step lacks is left out."""
    rows: dict[int, dict[str, float]] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        rows.setdefault(int(entry["step"]), {}).update(_row(entry["data"]))
    return [{"step": step, **rows[step]} for step in sorted(rows)]


def _row(data: dict[str, Any]) -> dict[str, float]:
    row = {ours: float(data[theirs]) for theirs, ours in NAMES.items() if theirs in data}
    held_out = [value for name, value in data.items() if name.startswith("val-") and name.endswith("reward/mean@1")]
    return row | ({"held_out_reward": float(held_out[0])} if held_out else {})


def write_curve(path: Path, cell_dir: CellDir) -> None:
    """`curve.json` of a cell."""
    cell_dir.write_json("curve.json", read_curve(path))
