"""What a dump of any format counts is in the canonical trace: written by a writer here, imported, stored, read back."""

from __future__ import annotations

import json
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.records import Trajectory
from libra.workloads.importers import import_dump
from libra.workloads.trace_file import SUFFIXES, read_trace, write_trace

RUN = {"type": "train", "id": "r", "work": {"type": "train", "step": 1, "policy": {"start": 2, "end": 2}}}


@dataclass(frozen=True)
class Rollout:
    """`turns` are (generated tokens, payload tokens); the payload of the last is 0 and stands for nothing."""

    group: int
    prompt_tok: int
    turns: tuple[tuple[int, int], ...]
    is_cut: bool

    @property
    def contexts(self) -> list[int]:
        """Context of each call."""
        found = [self.prompt_tok]
        for generated_tok, payload_tok in self.turns[:-1]:
            found.append(found[-1] + generated_tok + payload_tok)
        return found


counts = st.integers(1, 300)


@st.composite
def rollouts(draw: st.DrawFn) -> list[Rollout]:
    def one() -> Rollout:
        inner = draw(st.lists(st.tuples(counts, counts), max_size=4))
        last = (draw(counts), 0)
        return Rollout(draw(st.integers(0, 3)), draw(counts), (*inner, last), draw(st.booleans()))

    return [one() for _ in range(draw(st.integers(1, 6)))]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_slime(folder: Path, found: list[Rollout]) -> Path:
    samples = []
    for index, each in enumerate(found):
        mask = [bit for generated, payload in each.turns for bit in [1] * generated + [0] * payload]
        samples.append(
            {
                "group_index": each.group,
                "index": index,
                "prompt": "q",
                "tokens": [7] * (each.prompt_tok + len(mask)),
                "response_length": len(mask),
                "loss_mask": mask,
                "weight_versions": ["3"],
                "status": "truncated" if each.is_cut else "completed",
            }
        )
    with zipfile.ZipFile(folder / "rollout_1.pt", "w") as file:
        file.writestr("rollout_1/data.pkl", pickle.dumps({"rollout_id": 1, "samples": samples}, 2))
    return folder / "rollout_1.pt"


def as_prime_rl(folder: Path, found: list[Rollout]) -> Path:
    rows = []
    for index, each in enumerate(found):
        nodes = [{"message": {"role": "user", "content": "q"}, "token_ids": [1] * each.prompt_tok,
                  "mask": [False] * each.prompt_tok}]  # fmt: skip
        for generated, payload in each.turns:
            nodes.append({"parent": len(nodes) - 1, "sampled": True, "message": {"role": "assistant", "content": "a"},
                          "token_ids": [1] * generated, "mask": [True] * generated})  # fmt: skip
            if payload:
                message = {"role": "tool", "tool_call_id": "c", "content": "t"}
                nodes.append({"parent": len(nodes) - 1, "message": message,
                              "token_ids": [1] * payload, "mask": [False] * payload})  # fmt: skip
        trace = {"id": f"t{index}", "nodes": nodes, "calls": [], "ok": True, "rewards": {}}
        trace |= {"stop_condition": "max_turns"} if each.is_cut else {}
        rows.append({"id": f"e{index}", "env": {"id": "x"}, "task": {"type": "T", "key": "k", "data": {}},
                     "group": {"id": str(each.group)}, "run": RUN, "ok": True, "traces": [trace]})  # fmt: skip
    return write_lines(folder / "traces.jsonl", rows)


def as_openhands(folder: Path, found: list[Rollout]) -> Path:
    rows = []
    for index, each in enumerate(found):
        usages, history = [], []
        for turn, ((generated, payload), context) in enumerate(zip(each.turns, each.contexts, strict=True)):
            usages.append({"response_id": f"r{turn}", "prompt_tokens": context, "completion_tokens": generated})
            history.append({"id": 2 * turn, "source": "agent", "action": "run" if payload or each.is_cut else "finish",
                            "args": {}, "tool_call_metadata": {"model_response": {"id": f"r{turn}"}}})  # fmt: skip
            if payload:
                history.append({"id": 2 * turn + 1, "cause": 2 * turn, "observation": "run", "content": "x"})
        rows.append({"instance_id": f"i{each.group}", "attempt": index, "test_result": {}, "metadata": {"dataset": "d"},
                     "history": history, "metrics": {"token_usages": usages}})  # fmt: skip
    return write_lines(folder / "output.jsonl", rows)


def as_inspect_ai(folder: Path, found: list[Rollout]) -> Path:
    samples = []
    for epoch, each in enumerate(found):
        messages: list[dict[str, Any]] = [{"role": "user", "content": "q", "id": "q"}]
        events = []
        for turn, ((generated, payload), context) in enumerate(zip(each.turns, each.contexts, strict=True)):
            message = {"role": "assistant", "content": "a", "id": f"m{turn}"}
            usage = {"output_tokens": generated, "total_tokens": context + generated}
            events.append({"event": "model", "output": {"choices": [{"message": message}], "usage": usage}})
            messages.append(message)
            if payload:
                messages.append({"role": "tool", "content": "t", "tool_call_id": f"c{turn}"})
        samples.append({"id": f"s{each.group}", "epoch": epoch, "input": "q", "target": "", "messages": messages,
                        "events": events, "limit": {"type": "turn", "limit": 3} if each.is_cut else None})  # fmt: skip
    path = folder / "log.json"
    path.write_text(json.dumps({"version": 2, "eval": {"task": "t", "task_id": "T"}, "samples": samples}))
    return path


def as_atif(folder: Path, found: list[Rollout]) -> Path:
    rows = []
    for index, each in enumerate(found):
        steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": f"q{each.group}"}]
        for (generated, payload), context in zip(each.turns, each.contexts, strict=True):
            metrics = {"prompt_tokens": context, "completion_tokens": generated}
            step = {"step_id": len(steps) + 1, "source": "agent", "message": "a", "metrics": metrics}
            steps.append(step | ({"observation": {"results": [{"content": "t"}]}} if payload else {}))
        row = {"schema_version": "ATIF-v1.8", "trajectory_id": f"t{index}", "agent": {"name": "a"}, "steps": steps}
        rows.append(row | ({"continued_trajectory_ref": "next"} if each.is_cut else {}))
    return write_lines(folder / "trajectories.jsonl", rows)


WRITERS: dict[str, Callable[[Path, list[Rollout]], Path]] = {
    "slime": as_slime,
    "prime-rl": as_prime_rl,
    "openhands": as_openhands,
    "inspect-ai": as_inspect_ai,
    "atif": as_atif,
}


def counted(rows: tuple[Trajectory, ...]) -> list[Any]:
    return [
        (
            row.prompt_tok,
            tuple((turn.generated_tok, turn.tool.payload_tok if turn.tool else 0) for turn in row.turns),
            row.is_censored,
        )
        for row in rows
    ]


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=60, deadline=None)
@given(found=rollouts(), suffix=st.sampled_from(SUFFIXES))
def test_counts_and_groups_survive_import_and_storage(name: str, found: list[Rollout], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        result = import_dump("auto", [WRITERS[name](Path(folder), found)])
        path = Path(folder) / f"t{suffix}"
        write_trace(path, result.header, result.trajectories)
        header, rows = read_trace(path)
    assert (header, rows) == (result.header, result.trajectories)
    assert {each.format for each in result.report.files} == {name}
    assert header.token_counting == "exact"
    assert counted(rows) == [(each.prompt_tok, each.turns, each.is_cut) for each in found]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(each.group for each in found))}
    assert [row.group for row in rows] == [numbers[each.group] for each in found]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(counts, counts, st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_areal_rollouts_keep_sums_and_versions(lengths: list[tuple[int, int, int, int]]) -> None:
    rows = [
        {
            "task_id": 1,
            "sample_idx": index,
            "seqlen": prompt + generated,
            "prompt_len": prompt,
            "head_version": version,
            "tail_version": version + drift,
            "reward": 0.5,
            "prompt": "q",
            "completion": "a",
        }
        for index, (prompt, generated, version, drift) in enumerate(lengths)
    ]
    with tempfile.TemporaryDirectory() as folder:
        found = import_dump("auto", [write_lines(Path(folder) / "1.jsonl", rows)]).trajectories
    assert [(row.prompt_tok, row.generated_tok) for row in found] == [(prompt, tok) for prompt, tok, _, _ in lengths]
    assert [[span.version for span in row.turns[0].spans] for row in found] == [
        [] if drift else [version] for _, _, version, drift in lengths
    ]
