"""verl's `trainer.rollout_data_dir` and `validation_data_dir`: `<step>.jsonl`, one decoded sample a line.

Special tokens are lost in that dump: turns show only as bare role lines and as the tags of tool responses (Qwen's
`<tool_response>`, Search-R1's `<information>`). No token counts, times or versions; what was cut by the length limit
can't be told from what ended, unless it ends inside a call or a response.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from libra.core.records import TrajectoryStatus
from libra.workloads.importers.base import (
    Findings,
    ImporterSpec,
    Place,
    RowError,
    Sample,
    as_float,
    convert,
    digest,
    shown,
)
from libra.workloads.importers.tagged import read_tagged
from libra.workloads.importers.text import estimate_tok
from libra.workloads.importers.turns import TurnBuilder


class _Line(msgspec.Struct):
    input: str
    output: str
    score: float | None = None
    step: int | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or not isinstance(value.get("input"), str) or "output" not in value:
        return 0
    if "score" in value or "step" in value:
        return 2
    return 1 if isinstance(value["output"], str) else 0


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. A group is what one folder's step has of one input; equal inputs are one prompt."""
    line = convert(value, _Line)
    if not line.output.strip():
        raise RowError("no turns: the output is empty")
    findings.note(
        "verl does not dump what the length limit cut: only samples that end in a call or response are marked"
    )
    turns = TurnBuilder(findings)
    is_cut = read_tagged(line.output, turns)
    score = as_float(line.score)
    if line.score is not None and score is None:
        findings.count("bad_reward")
    prompt = digest(line.input)
    status: TrajectoryStatus = "truncated" if is_cut else "completed"
    yield Sample(
        prompt_id=f"prompt-{prompt}",
        prompt_tok=estimate_tok(len(line.input)),
        turns=turns.build(),
        group=f"{shown(place.path.parent)} {_step(line, place)} {prompt}",
        reward=score,
        status=status,
    )


def _step(line: _Line, place: Place) -> str:
    return place.path.name if line.step is None else str(line.step)


IMPORTER = ImporterSpec(
    name="verl",
    summary="verl rollout dumps of trainer.rollout_data_dir, one file a step (.jsonl)",
    sniff=sniff,
    read=read,
)
