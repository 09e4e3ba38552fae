"""Logs of agent harnesses (OpenHands, inspect_ai, ATIF), trajectory by trajectory, against what was worked out by
hand."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from libra.core.records import ToolReturn, Turn
from libra.workloads.importers import ImportResult

Imported = Callable[..., ImportResult]
Lines = Callable[..., Path]


def reasons(result: ImportResult) -> list[str]:
    return [each.reason for each in result.report.unread]


def test_openhands_events(dumps: Path, imported: Imported) -> None:
    result = imported("openhands", dumps / "openhands" / "output.jsonl")
    row, pairs = result.trajectories
    assert row.turns == (
        Turn(20, ToolReturn("execute_bash", 30, "error", 2.5)),
        Turn(30, ToolReturn("execute_bash", 20, "timeout", 30.0)),
        Turn(10),
    ), "two actions of one response are one generation; an exit code of -1 is a command that did not end"
    assert (row.prompt_tok, row.reward, row.status) == (100, 1.0, "completed")
    assert pairs.turns == (Turn(5, ToolReturn("run", 3)), Turn(2)), "18, 9 and 8 characters"
    assert (pairs.key, pairs.status, pairs.prompt_tok) == ("0/1", "truncated", 3), "the limit of iterations"
    assert result.report.counted["parallel"] == 1


def test_openhands_agent_sdk(dumps: Path, imported: Imported) -> None:
    (row,) = imported("openhands", dumps / "openhands" / "sdk").trajectories
    assert row.turns == (
        Turn(8, ToolReturn("terminal", 7, "ok", 0.5)),
        Turn(9, ToolReturn("file_editor", 11, "error", 0.125)),
        Turn(4),
    )
    assert (row.prompt_id, row.status) == ("repo__2", "completed")


def test_openhands_bad_lines(imported: Imported, lines: Lines) -> None:
    line: dict[str, Any] = {"instance_id": "a", "test_result": {}}
    action = {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}}
    good = line | {"history": [action], "error": "docker died"}
    result = imported(
        "openhands",
        lines(
            "output.jsonl",
            good,
            line | {"history": None, "error": "no image"},
            line | {"history": [{"id": 1}]},
            line | {"history": [{"id": 1, "source": "user", "action": "message", "args": {"content": "hi"}}]},
        ),
    )
    assert [(row.turns, row.status) for row in result.trajectories] == [((Turn(1),), "aborted")]
    assert reasons(result) == [
        "no turns: an empty history (no image)",
        "an event is neither action nor observation",
        "no turns: no action of the agent",
    ]


def test_inspect_ai_archive(dumps: Path, imported: Imported) -> None:
    result = imported("inspect-ai", dumps / "inspect-ai" / "log.eval")
    row, cut = result.trajectories
    assert row.turns == (
        Turn(10, ToolReturn("bash", 5, "ok", 0.5)),
        Turn(12, ToolReturn("bash", 13, "timeout", 60.0)),
        Turn(3),
    ), "payloads: 65 - 50 - 10 and 90 - 65 - 12; the grader's 40 tokens are not the trajectory's"
    assert (row.prompt_tok, row.reward, row.status, row.key) == (50, 1.0, "completed", "0/0")
    assert (cut.reward, cut.status, cut.key) == (0.0, "truncated", "0/1"), "epochs are a group; a limit of messages"
    assert row.prompt_id == "count/q1"
    assert result.header.token_counting == "exact"


def test_inspect_ai_json_without_usage(dumps: Path, imported: Imported) -> None:
    result = imported("inspect-ai", dumps / "inspect-ai" / "log.json")
    (row,) = result.trajectories
    assert row.prompt_tok == 3 + 3, "the attachment 'You answer. ' and 'How many?'"
    assert [turn.generated_tok for turn in row.turns] == [8, 6, 2]
    assert row.reward == 0.25
    assert result.header.token_counting == "chars/4 (no tokenizer), error unknown"


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if kept := change(name, old.read(name)):
                new.writestr(*kept)
    return target


def test_inspect_ai_unfinished_and_chunked_logs(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    log = dumps / "inspect-ai" / "log.eval"
    running = rewritten(log, tmp_path / "a.eval", lambda name, raw: None if name == "header.json" else (name, raw))
    assert imported("auto", running).trajectories == imported("auto", log).trajectories, "the journal has the task too"

    def in_chunks(name: str, raw: bytes) -> tuple[str, bytes]:
        return ("samples/q1_epoch_2/sample.json" if name.endswith("epoch_2.json") else name), raw

    result = imported("auto", rewritten(log, tmp_path / "b.eval", in_chunks))
    assert len(result.trajectories) == 1
    assert reasons(result) == ["sample q1_epoch_2 is stored in chunks, which are not read"]


def test_inspect_ai_members_packed_by_zstandard(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    """Written by hand as inspect_ai's newer logs are: method 93, which Python's zipfile can't read before 3.14."""
    log = dumps / "inspect-ai" / "log.eval"
    packer = zstandard.ZstdCompressor()
    target = tmp_path / "c.eval"
    with zipfile.ZipFile(log) as old, zipfile.ZipFile(target, "w") as new:
        sizes = {name: len(old.read(name)) for name in old.namelist()}
        for name in old.namelist():
            raw = old.read(name)
            new.writestr(name, packer.compress(raw[:100]) + packer.compress(raw[100:]))
        for info in new.infolist():
            info.compress_type, info.file_size = 93, sizes[info.filename]
    assert imported("auto", target).trajectories == imported("auto", log).trajectories


def test_archives_that_are_none_or_cut(dumps: Path, imported: Imported, lines: Lines, tmp_path: Path) -> None:
    good = lines("good.jsonl", {"input": "q", "output": "a", "score": 1.0, "step": 1})
    log = dumps / "inspect-ai" / "log.eval"
    (tmp_path / "cut.eval").write_bytes(log.read_bytes()[:2000])
    (tmp_path / "bad.eval").write_bytes(
        log.read_bytes().replace(b"samples/q1_epoch_1.json", b"samples/q1_epoch_9.json", 1)
    )
    with zipfile.ZipFile(tmp_path / "other.eval", "w") as file:
        file.writestr("a.txt", "hello")
    result = imported("auto", good, *(tmp_path / f"{name}.eval" for name in ("cut", "bad", "other")))
    cut, bad, other = reasons(result)
    assert cut == "truncated or damaged archive: File is not a zip file"
    assert bad.startswith("no JSON: samples/q1_epoch_1.json is damaged or not readable")
    assert other == "a zip archive, and neither torch's nor inspect_ai's"
    assert len(result.trajectories) == 2, "the other sample of the damaged log is kept"


def test_atif(dumps: Path, imported: Imported) -> None:
    result = imported("atif", dumps / "atif" / "trajectory.json")
    row, sub = result.trajectories
    assert row.turns == (
        Turn(12, ToolReturn("bash", 18, "error")),
        Turn(6, ToolReturn("bash", 9, "ok")),
        Turn(4),
    ), "70 - 40 - 12 and 85 - 70 - 6; 'command not found' is the worst of two parallel returns"
    assert (row.prompt_tok, row.status) == (40, "completed")
    assert (sub.turns, sub.prompt_tok) == ((Turn(5),), 12)
    assert (row.group, sub.group) == (0, 1)
    assert result.report.counted["agent"] == 1


def test_atif_without_metrics(dumps: Path, imported: Imported) -> None:
    result = imported("atif", dumps / "atif")
    first = result.trajectories[0]
    assert first.turns == (Turn(7, ToolReturn("bash", 4)), Turn(5)), "28 characters, 'a.txt' and 'Go on.', 16"
    assert first.status == "truncated", "it stops at an observation"
    assert [row.key for row in result.trajectories] == ["0/0", "0/1", "1/0"], "one agent and prompt: a group"
    assert result.report.counted["user_reply"] == 1


def test_atif_steps_that_nobody_generated(imported: Imported, lines: Lines) -> None:
    agent = {"name": "a", "version": "1"}

    def step(number: int, source: str, **more: Any) -> dict[str, Any]:
        return {"step_id": number, "source": source, "message": "1234"} | more

    copied = [step(1, "user"), step(2, "agent", is_copied_context=True), step(3, "agent")]
    program = [step(1, "user"), step(2, "agent"), step(3, "agent", llm_call_count=0, observation={"results": [{"content": "12345678"}]}), step(4, "agent")]  # fmt: skip  # noqa: E501
    several = [
        step(1, "user"),
        step(2, "agent", llm_call_count=3, metrics={"prompt_tokens": 99, "completion_tokens": 9}),
    ]
    rows = [
        {"schema_version": "ATIF-v1.7", "session_id": str(k), "agent": agent, "steps": steps}
        for k, steps in enumerate(
            (copied, program, several, [step(1, "user")], [step(1, "robot"), step(2, "agent")], [])
        )
    ]
    result = imported("atif", lines("t.jsonl", *rows))
    assert [(row.prompt_tok, row.turns) for row in result.trajectories[:3]] == [
        (2, (Turn(1),)),
        (1, (Turn(1, ToolReturn("tool", 2)), Turn(1))),
        (1, (Turn(1),)),
    ], "copied context is prompt; a step of no call is none; sums of several calls are no context"
    assert reasons(result) == ["no turns: no step of the agent", "no steps"]


def test_atif_nested_without_end(imported: Imported, lines: Lines) -> None:
    row: dict[str, Any] = {}
    for _ in range(20):
        inner = [row] if row else []
        steps = [{"step_id": 1, "source": "agent", "message": "hi"}]
        row = {"schema_version": "ATIF-v1.8", "agent": {"name": "a"}, "steps": steps, "agent_trajectories": inner}
    result = imported("atif", lines("t.json", json.dumps(row)))
    assert len(result.trajectories) == 9
    assert reasons(result) == ["sub-agents nested more than 8 deep"]
