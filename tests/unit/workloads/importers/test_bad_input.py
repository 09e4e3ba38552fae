"""Damaged, foreign and repeated dumps: what is good is kept, the rest is named, nothing ends in a traceback."""

from __future__ import annotations

import copy
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.errors import ConfigError, TraceError
from libra.workloads.importers import ImportResult, import_dump, importers
from libra.workloads.importers.base import Findings, Place, RowError, Sample
from libra.workloads.importers.files import load
from libra.workloads.trace_file import read_trace, write_trace

Imported = Callable[..., ImportResult]
Lines = Callable[..., Path]
FOLDERS = (
    "areal", "atif", "inspect-ai", "kv-cache-tester", "mini-swe-agent", "normalized", "openai", "openhands", "prime-rl",
    "search-r1", "slime", "swe-agent", "verl",
)  # fmt: skip
SAMPLE = {"input": "q", "output": "a", "score": 1.0, "step": 1}


def reasons(result: ImportResult) -> list[tuple[str, str]]:
    return [(each.where.rsplit("/", 1)[-1], each.reason) for each in result.report.unread]


def refusal(*paths: Path, format_name: str = "auto") -> str:
    with pytest.raises(TraceError) as caught:
        import_dump(format_name, paths)
    return str(caught.value)


def turns(**first: Any) -> dict[str, Any]:
    return {
        "prompt_id": "p",
        "sample": 0,
        "prompt_tokens": 9,
        "turns": [{"gen": 1, "tool": "t", "payload": 2, **first}, {"gen": 1}],
    }


def test_auto_reads_every_format_and_makes_a_valid_trace(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    assert tuple(importers()) == FOLDERS
    result = imported("auto", dumps)
    assert {each.format for each in result.report.files} == set(FOLDERS)
    assert not result.report.unread
    write_trace(tmp_path / "t.jsonl.gz", result.header, result.trajectories)
    assert read_trace(tmp_path / "t.jsonl.gz") == (result.header, result.trajectories)
    assert imported("auto", dumps) == result, "deterministic"


@pytest.mark.parametrize("name", FOLDERS)
def test_auto_agrees_with_the_format_by_name(dumps: Path, imported: Imported, name: str) -> None:
    assert imported("auto", dumps / name).trajectories == imported(name, dumps / name).trajectories


def test_unknown_format_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown dump format .got 'vrel'.\n  did you mean 'verl'\?"):
        import_dump("vrel", [tmp_path])
    assert "no such file or folder" in refusal(tmp_path / "absent.jsonl")
    assert "no dump in there" in refusal(tmp_path)


def test_empty_binary_and_truncated_files_beside_a_good_one(
    dumps: Path, imported: Imported, lines: Lines, tmp_path: Path
) -> None:
    lines("good.jsonl", SAMPLE)
    (tmp_path / "binary.json").write_bytes(bytes(range(256)))
    (tmp_path / "empty.json").write_bytes(b"")
    (tmp_path / "cut.traj").write_text((dumps / "swe-agent" / "old.traj").read_text()[:900])
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "LICENSE").write_text("text")
    result = imported("auto", tmp_path)
    assert len(result.trajectories) == 1
    found = dict(reasons(result))
    assert found["binary.json"] == "binary, no text"
    assert found["empty.json"] == found["blank.jsonl"] == "empty"
    assert found["cut.traj"].startswith("neither JSON nor JSON Lines, or truncated: ")
    assert any("1 files are no dumps by their names, left aside (LICENSE)" in note for note in result.report.notes)


@pytest.mark.parametrize(
    "content", [b"", b"\x89PNG\r\n\x1a\n\x00\x00", b"\xff\xfe\xfa", b"no json", b"[", b"{", b"[1, 2]", b"null"]
)
def test_nothing_readable_is_an_error_with_the_reason(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "dump.json"
    path.write_bytes(content)
    assert "nothing could be read\n  " in refusal(path)
    assert str(path) in refusal(path)


def test_a_bad_line_is_named_and_loses_no_other(imported: Imported, lines: Lines) -> None:
    path = lines(
        "1.jsonl", SAMPLE, '{"input": "q", "outp', SAMPLE | {"output": 7}, SAMPLE | {"output": " "}, "17", SAMPLE
    )
    result = imported("verl", path)
    assert [row.key for row in result.trajectories] == ["0/0", "0/1"]
    where, why = zip(*reasons(result), strict=True)
    assert where == tuple(f"1.jsonl, line {number}" for number in (2, 5, 3, 4))
    assert why[1:] == (
        "neither an object nor a list",
        "Expected `str`, got `int` - at `$.output`",
        "no turns: the output is empty",
    )


def test_truncated_list_keeps_its_whole_elements(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    text = (dumps / "openai" / "tau.json").read_text()
    path = tmp_path / "tau.json"
    path.write_text(text[: int(len(text) * 0.7)])
    result = imported("openai", path)
    assert len(result.trajectories) == 2
    assert reasons(result) == [("tau.json, element 3", "the list is truncated or broken after element 2")]


def test_truncated_gzip_keeps_its_whole_lines(imported: Imported, tmp_path: Path) -> None:
    rows = "".join(json.dumps(SAMPLE | {"output": f"answer {k * 7919 % 1000}"}) + "\n" for k in range(500))
    path = tmp_path / "1.jsonl.gz"
    whole = gzip.compress(rows.encode())
    path.write_bytes(whole[: len(whole) // 2])
    result = imported("verl", path)
    assert 100 < len(result.trajectories) < 400
    assert reasons(result)[0] == (
        "1.jsonl.gz",
        "truncated: the compressed stream ends early; what stands before is read",
    )


def test_mixed_formats_in_one_file(dumps: Path, imported: Imported, lines: Lines) -> None:
    session = json.loads((dumps / "kv-cache-tester" / "session.json").read_text())
    path = lines("mix.jsonl", SAMPLE, session, SAMPLE | {"step": 2}, {"a": 1})
    for name in ("auto", "verl"):
        result = imported(name, path)
        assert len(result.trajectories) == 2
        assert reasons(result) == [
            ("mix.jsonl, line 2", "looks like format kv-cache-tester"),
            ("mix.jsonl, line 4", "no known format"),
        ]


def test_alien_files_with_a_format_by_name(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    shutil.copy(dumps / "swe-agent" / "old.traj", tmp_path)
    shutil.copy(dumps / "normalized" / "lines.jsonl", tmp_path)
    result = imported("swe-agent", tmp_path)
    assert len(result.trajectories) == 1
    assert reasons(result) == [("lines.jsonl", "looks like format normalized (4 rows)")]


def test_a_canonical_trace_needs_no_import(dumps: Path, imported: Imported, tmp_path: Path) -> None:
    result = imported("auto", dumps)
    write_trace(tmp_path / "t.jsonl.gz", result.header, result.trajectories)
    assert "looks like a canonical trace: needs no import" in refusal(tmp_path / "t.jsonl.gz")


@pytest.mark.parametrize("name", FOLDERS)
def test_copies_of_files_are_dropped_and_named(dumps: Path, imported: Imported, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(dumps / name, folder)
    once = imported(name, folder)
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        shutil.copy(path, path.with_name(f"z_{path.name}"))
    twice = imported(name, folder)
    assert twice.trajectories == once.trajectories
    num_copies = len(twice.report.duplicates) - len(once.report.duplicates)
    assert num_copies == sum(each.num_rows for each in once.report.files)
    assert "duplicates dropped" in "\n".join(twice.report.lines())


def test_a_list_written_twice_and_a_file_named_twice(imported: Imported, lines: Lines) -> None:
    rows = [SAMPLE, SAMPLE | {"output": "b"}, SAMPLE]
    path = lines("1.jsonl", *rows, *rows)
    result = imported("verl", path, path)
    assert len(result.trajectories) == 3
    assert len(result.report.duplicates) == 3
    assert any("named twice: read once" in note for note in result.report.notes)


def test_named_rows_of_equal_content_are_copies_and_of_other_content_are_samples(
    imported: Imported, lines: Lines
) -> None:
    row = {"task_id": 1, "trial": 0, "traj": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    other = row | {"traj": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "other"}]}
    result = imported("openai", lines("t.jsonl", row, row, other))
    assert [row.key for row in result.trajectories] == ["0/0", "0/1"]
    assert len(result.report.duplicates) == 1


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (turns(gen=-4), "Expected `int` >= 0 - at `$.turns[0].gen`"),
        (turns(gen=None), "Expected `int`, got `null` - at `$.turns[0].gen`"),
        (turns(payload=None), "turn 0: the payload is missing"),
        (turns(gen=2**70), f"turn 0: generated_tok is {2**70}"),
        (turns() | {"prompt_tokens": -1}, "Expected `int` >= 0 - at `$.prompt_tokens`"),
        (turns() | {"turns": []}, "no turns: nothing was generated"),
        (turns() | {"turns": [{}]}, "Object missing required field `gen` - at `$.turns[0]`"),
    ],
)
def test_negative_and_missing_counts(imported: Imported, lines: Lines, row: dict[str, Any], why: str) -> None:
    result = imported("normalized", lines("t.jsonl", row | {"sample": 1}, turns()))
    assert len(result.trajectories) == 1
    assert reasons(result) == [("t.jsonl, line 1", why)]


def test_negative_payloads_and_impossible_times_are_counted(imported: Imported, lines: Lines) -> None:
    result = imported("normalized", lines("t.jsonl", turns(payload=-100, tool_s=-1.0)))
    assert result.trajectories[0].turns[0].tool is not None
    assert result.trajectories[0].turns[0].tool.payload_tok == 0
    assert result.trajectories[0].turns[0].tool.latency_s is None
    text = "\n".join(result.report.lines())
    assert "1 negative payloads (context compaction, or text dropped from the history): payload 0" in text
    assert "1 impossible tool times" in text


def test_negative_usage(imported: Imported, lines: Lines) -> None:
    usage = {"prompt_tokens": -1, "completion_tokens": 5}
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "usage": usage}]
    path = lines("c.jsonl", {"messages": chat}, {"messages": [chat[0], {"role": "assistant", "content": "b"}]})
    result = imported("openai", path)
    assert len(result.trajectories) == 1
    assert reasons(result) == [("c.jsonl, line 1", "a message's usage has a negative token count")]


def test_text_that_utf8_cannot_hold(imported: Imported, lines: Lines, tmp_path: Path) -> None:
    messages = '[{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "a\\udfff"}]'
    chat = f'{{"messages": {messages}, "task_id": "\\ud800", "trial": 0}}'
    odd = (
        '{"source": "\\ud800", "traj_id": "\\ud800", "prompt_id": "\\udfff", "prompt_tokens": 1, "turns": [{"gen": 1}]}'
    )
    files = lines("c\udcff.jsonl", chat, chat), lines("n.jsonl", odd, odd)
    result = imported("auto", *files)
    assert len(result.report.duplicates) == 2
    "\n".join(result.report.lines()).encode()
    write_trace(tmp_path / "t.jsonl.gz", result.header, result.trajectories)


def test_nested_beyond_reason(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000 + "]" * 100_000)
    assert "nested too deep" in refusal(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places_in(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [found for key in keys for found in [(value, key), *places_in(value[key])]]


@pytest.mark.parametrize("name", FOLDERS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_field_may_be_anything(project_root: Path, name: str, data: st.DataObject) -> None:
    """A field of a good row replaced by any JSON value gives samples or a `RowError`, never another exception."""
    folder = project_root / "tests" / "data" / name
    path = data.draw(st.sampled_from(sorted(each for each in folder.rglob("*") if each.is_file())))
    rows = copy.deepcopy([value for _, value in load(path).rows])
    container, key = data.draw(st.sampled_from(places_in(rows)))
    container[key] = data.draw(json_values)
    for row in rows:
        for spec in importers().values():
            if spec.sniff(row):
                spec.identify(row)
                try:
                    found = list(spec.read(row, Place(path), Findings()))
                except RowError:
                    continue
                assert all(isinstance(each, Sample | RowError) for each in found)
