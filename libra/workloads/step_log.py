"""Step times that a user wrote down: a CSV, JSON or JSON Lines table with one row a training step, checked row by row.

verl's own file log (`trainer.logger=["file"]`) is read too; it tells no split, so its GPU counts are the caller's.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from libra.core.errors import TraceError, nearest_match

TIMES = ("rollout_s", "train_s", "step_s")
COUNTS = ("gpus_rollout", "gpus_train")
REQUIRED = (*COUNTS, *TIMES, "tokens")
OPTIONAL = ("run", "step", "pipeline", "model")
SUFFIXES = (".csv", ".json", ".jsonl")
MEND = f"one row a step, with the columns {', '.join(REQUIRED)}; {', '.join(OPTIONAL)} may be left out"
VERL_TIMES = {"rollout_s": "timing_s/gen", "step_s": "timing_s/step", "tokens": "perf/total_num_tokens"}
VERL_TRAIN = tuple(
    f"timing_s/{name}" for name in ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
)
"""verl 0.9.1, `verl/trainer/ppo/ray_trainer.py`: what its trainer does with a batch; some are absent in some jobs."""


class StepLine(msgspec.Struct, frozen=True):
    """One step. `tokens` are prompt, generated and observed ones of the trained batch; counts are 0 where unknown."""

    rollout_s: float
    train_s: float
    step_s: float
    tokens: float
    gpus_rollout: int = 0
    gpus_train: int = 0
    run: str = ""
    pipeline: str = ""
    model: str = ""


def read_steps(path: Path) -> list[StepLine]:
    """Rows in the file's order. Raises `TraceError` with the row for what no step has, and for a file without times."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the steps: {error}", where=str(path), mend=MEND) from None
    rows = list(_rows(path, text))
    if not rows:
        raise TraceError("no step in this file", where=str(path), mend=MEND)
    return [_line(row, f"{path}, row {number}") for number, row in enumerate(rows, 1)]


def _rows(path: Path, text: str) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".csv":
        yield from csv.DictReader(io.StringIO(text), skipinitialspace=True)
        return
    try:
        found = json.loads(text) if path.suffix == ".json" else [json.loads(x) for x in text.splitlines() if x.strip()]
    except json.JSONDecodeError as error:
        raise TraceError(f"no JSON: {error}", where=str(path), mend=MEND) from None
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise TraceError("no table: JSON steps are a list of objects", where=str(path), mend=MEND)
    yield from found


def _line(row: Mapping[str, Any], where: str) -> StepLine:
    if isinstance(row.get("data"), dict) and set(row) == {"step", "data"}:
        return _verl_line(row["data"], where)
    _check_columns(row, where)
    numbers: dict[str, Any] = {name: _number(row[name], f"{where}, {name}") for name in (*TIMES, "tokens")}
    counts = {name: _count(row[name], f"{where}, {name}") for name in COUNTS}
    texts = {name: str(row.get(name) or "") for name in ("run", "pipeline", "model")}
    return msgspec.convert(numbers | counts | texts, StepLine)


def _check_columns(row: Mapping[str, Any], where: str) -> None:
    missing = [name for name in REQUIRED if row.get(name) in (None, "")]
    if not any(name in row for name in TIMES):
        raise TraceError("no step times here", where=where, value=", ".join(map(str, row))[:120], mend=MEND)
    if None in row:
        raise TraceError("more values than columns", where=where, value=row[None], mend=MEND)  # type: ignore[index]
    unknown = [name for name in row if name not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        near = nearest_match(unknown[0], (*REQUIRED, *OPTIONAL))
        raise TraceError("unknown column", where=where, value=unknown[0], allowed=(*REQUIRED, *OPTIONAL), nearest=near)
    if missing:
        raise TraceError(f"no {' and no '.join(missing)}", where=where, mend=MEND)


def _verl_line(data: Mapping[str, Any], where: str) -> StepLine:
    missing = [key for key in (*VERL_TIMES.values(), "timing_s/update_actor") if key not in data]
    if missing:
        raise TraceError(f"verl's log has no {' and no '.join(missing)}", where=where,
                         mend="take the log of trainer.logger=['file'] of a run that has trained")  # fmt: skip
    found = {name: _number(data[key], f"{where}, {key}") for name, key in VERL_TIMES.items()}
    train_s = sum(_number(data[key], f"{where}, {key}") for key in VERL_TRAIN if key in data)
    return msgspec.convert(found | {"train_s": train_s}, StepLine)


def _number(value: Any, where: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise TraceError("no step has such a figure", where=where, value=value, allowed=("a finite number above 0",))
    return found


def _count(value: Any, where: str) -> int:
    found = _number(value, where)
    if found != int(found):
        raise TraceError("no number of GPUs", where=where, value=value, allowed=("1 or more",))
    return int(found)
