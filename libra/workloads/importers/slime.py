"""slime's `--save-debug-rollout-data` files (`torch.save` of Sample dicts), read without torch; or such dicts as JSON.

Token counts are exact: runs of ones in the loss mask are generations, runs of zeros what tools returned. Names and
statuses of tools stand in the response's text only, if at all; the time beside generation is one sum a sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from libra.core.records import ToolStatus, TrajectoryStatus
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
from libra.workloads.importers.status import judge
from libra.workloads.importers.tagged import called_in, responses_in
from libra.workloads.importers.text import estimate_tok, text_of
from libra.workloads.importers.turns import TurnBuilder

STATUSES: dict[str, TrajectoryStatus] = {"completed": "completed", "truncated": "truncated"}
"""slime's; aborted, failed and pending ones are aborted."""
EVAL = "eval"
"""In the name of a file of evaluation samples."""
SCORE_KEYS = ("score", "reward", "acc")
"""Where the reward is a dict, slime's `--reward-key` says which; the dump does not."""


class _Sample(msgspec.Struct):
    response_length: int
    tokens: list[int] | None = None
    prompt: Any = ""
    response: str = ""
    loss_mask: list[int] | None = None
    group_index: int | None = None
    index: int | None = None
    reward: Any = None
    status: str = "pending"
    weight_versions: list[Any] = []
    non_generation_time: float = 0.0
    dump_rollout_id: int | None = None


def sniff(value: Any) -> int:
    """See `ImporterSpec`."""
    if not isinstance(value, dict) or "response_length" not in value or "tokens" not in value:
        return 0
    return 2 if "loss_mask" in value or "group_index" in value else 1


def identify(value: Any) -> str | None:
    """See `ImporterSpec`."""
    if value.get("index") is None:
        return None
    return f"rollout {value.get('dump_rollout_id')} sample {value.get('group_index')}/{value['index']}"


def read(value: Any, place: Place, findings: Findings) -> Iterator[Sample]:
    """See `ImporterSpec`. A group is slime's own: one prompt's samples of one rollout."""
    sample = convert(value, _Sample)
    if sample.response_length < 0:
        raise RowError("a negative response_length")
    prompt_tok, is_exact = _prompt_tok(sample)
    lead_tok, pieces = _pieces(sample, findings)
    turns = TurnBuilder(findings)
    _fill(turns, sample, pieces, findings)
    kind = EVAL if EVAL in place.path.name else "train"
    prompt = sample.prompt if isinstance(sample.prompt, str) else json.dumps(sample.prompt, sort_keys=True)
    run = f"{shown(place.path.parent)} {kind} {place.path.name if sample.dump_rollout_id is None else ''}"
    group = f"{run} {sample.dump_rollout_id} {sample.group_index} {digest(prompt)}"
    yield Sample(
        prompt_id=f"prompt-{digest(prompt)}",
        prompt_tok=prompt_tok + lead_tok,
        turns=turns.build(),
        group=None if sample.group_index is None else group,
        reward=_reward(sample.reward, findings),
        status=STATUSES.get(sample.status, "aborted"),
        is_exact=is_exact,
    )


def _prompt_tok(sample: _Sample) -> tuple[int, bool]:
    if not sample.tokens:
        text = sample.prompt if isinstance(sample.prompt, str) else text_of(sample.prompt)
        return estimate_tok(len(text)), False
    if len(sample.tokens) < sample.response_length:
        raise RowError(f"{len(sample.tokens)} tokens, and a response of {sample.response_length}")
    return len(sample.tokens) - sample.response_length, True


def _pieces(sample: _Sample, findings: Findings) -> tuple[int, list[tuple[bool, int]]]:
    """Tokens before the first generation, and (is generated, tokens) from there on."""
    mask = sample.loss_mask
    if mask is None or not any(mask):
        findings.count("masked", mask is not None and sample.response_length > 0)
        return 0, [(True, sample.response_length)] if sample.response_length else []
    if len(mask) != sample.response_length:
        raise RowError(f"a loss mask of {len(mask)} for a response of {sample.response_length}")
    runs = [(bool(key), len(list(run))) for key, run in groupby(mask, bool)]
    return (0, runs) if runs[0][0] else (runs[0][1], runs[1:])


def _fill(turns: TurnBuilder, sample: _Sample, pieces: Sequence[tuple[bool, int]], findings: Findings) -> None:
    num_generated = sum(is_generated for is_generated, _ in pieces)
    num_returns = num_generated - 1  # one that nothing follows is left out
    versions = _versions(sample.weight_versions, num_generated, findings)
    told = _told(sample.response, len(pieces) - num_generated)
    total_s = sample.non_generation_time
    latency_s = total_s / num_returns if num_returns > 0 and total_s > 0 else None
    findings.count("spread_time", latency_s is not None and num_returns > 1)
    for is_generated, num_tok in pieces:
        if is_generated:
            turns.generate(num_tok, version=next(versions))
        else:
            tool, status, how = next(told)
            turns.observe(tool, num_tok, status, latency_s, how=how)


def _versions(found: Sequence[Any], num_turns: int, findings: Findings) -> Iterator[int | None]:
    """One a generation where as many are recorded; else all the same, or unknown."""
    numbers = [int(each) if str(each).isdecimal() and len(str(each)) < 19 else None for each in found]
    if len(numbers) == num_turns:
        return iter(numbers)
    is_same = len(set(numbers)) == 1
    findings.count("mixed_versions", len(set(numbers)) > 1)
    return iter([numbers[0] if is_same else None] * num_turns)


def _told(response: str, num_returns: int) -> Iterator[tuple[str, ToolStatus, str]]:
    """Tool, status and what told it of each return, where the text has as many; else unknown."""
    texts, names = responses_in(response), called_in(response, plain_tool="search")
    tools = names if len(names) >= num_returns else ["tool"] * num_returns
    for number in range(num_returns):
        status, how = judge(texts[number].strip()) if len(texts) == num_returns else ("unknown", "")
        yield tools[number], status, how


def _reward(value: Any, findings: Findings) -> float | None:
    if isinstance(value, dict):
        numbers = {key: as_float(each) for key, each in value.items() if as_float(each) is not None}
        key = next((key for key in SCORE_KEYS if key in numbers), None)
        value = numbers[key] if key else next(iter(numbers.values())) if len(numbers) == 1 else None
        if value is None:
            findings.note("rewards of several values: which one counts is not in the dump, so there is none")
            return None
    reward = as_float(value)
    if value is not None and reward is None:
        findings.count("bad_reward")
    return reward


IMPORTER = ImporterSpec(
    name="slime",
    summary="slime debug dumps of --save-debug-rollout-data, read without torch and as data alone (.pt)",
    sniff=sniff,
    read=read,
    identify=identify,
)
