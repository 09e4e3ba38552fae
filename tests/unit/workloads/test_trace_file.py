"""The canonical trace: exact content of small files, and every way in which a file is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libra.core.errors import TraceError
from libra.core.records import ToolReturn, Trajectory, Turn, VersionSpan
from libra.workloads.trace_file import SUFFIXES, TraceHeader, problem_in, read_trace, write_trace

HEADER = TraceHeader("by hand", "exact", ("a.json",), ("two tools",))
ROWS = (
    Trajectory("p", 0, 0, 10, (Turn(5, ToolReturn("bash", 7, "error", 1.5)), Turn(3, spans=(VersionSpan(2, 3),)))),
    Trajectory("p", 0, 1, 10, (Turn(4),), reward=0.0, status="truncated"),
)


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def jsonl(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_bytes(gzip.compress("".join(f"{text}\n" for text in texts).encode()))
    return path


def good_header(**more: object) -> dict[str, object]:
    return {"source": "s", "token_counting": "exact", "schema_version": 1, **more}


def good_row(**more: object) -> dict[str, object]:
    return {"prompt_id": "p", "group": 0, "sample": 0, "prompt_tok": 1, "turns": [{"generated_tok": 2}], **more}


def message(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    return str(caught.value)


def test_jsonl_content_is_as_documented(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace(path, HEADER, ROWS)
    assert [json.loads(line) for line in lines_of(path)] == [
        {
            "source": "by hand",
            "token_counting": "exact",
            "created_from": ["a.json"],
            "notes": ["two tools"],
            "schema_version": 1,
            "num_trajectories": 2,
        },
        {
            "prompt_id": "p",
            "group": 0,
            "sample": 0,
            "prompt_tok": 10,
            "turns": [
                {
                    "generated_tok": 5,
                    "tool": {"tool": "bash", "payload_tok": 7, "status": "error", "latency_s": 1.5},
                },
                {"generated_tok": 3, "spans": [{"version": 2, "num_tok": 3}]},
            ],
        },
        {
            "prompt_id": "p",
            "group": 0,
            "sample": 1,
            "prompt_tok": 10,
            "turns": [{"generated_tok": 4}],
            "reward": 0.0,
            "status": "truncated",
        },
    ]
    assert path.read_bytes()[4:8] == bytes(4), "gzip's time stamp"


def test_parquet_has_one_row_a_trajectory_and_the_header_in_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, HEADER, ROWS)
    table = pq.read_table(path)
    assert table.num_rows == 2
    assert table.column_names == ["prompt_id", "group", "sample", "prompt_tok", "turns", "reward", "status"]
    assert json.loads(table.schema.metadata[b"libra.header"])["schema_version"] == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_writing_leaves_nothing_but_the_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_trace(path, HEADER, ROWS[:1])
    write_trace(path, HEADER, ROWS)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert read_trace(path) == (HEADER, ROWS)


def test_a_refused_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    write_trace(path, HEADER, ROWS)
    with pytest.raises(TraceError, match="trajectory 1: group 0 sample 0 stands in trajectory 0 already"):
        write_trace(path, HEADER, (ROWS[0], ROWS[0]))
    assert read_trace(path) == (HEADER, ROWS)


def test_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written: No such file or directory"):
        write_trace(tmp_path / "absent" / "t.jsonl.gz", HEADER, ROWS)


def test_hand_made_file_without_a_count(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl.gz", good_header(), good_row())
    assert read_trace(path) == (TraceHeader("s", "exact"), (Trajectory("p", 0, 0, 1, (Turn(2),)),))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (good_row(prompt_tok=-1), "line 3: prompt_tok is -1"),
        (good_row(turns=[{"generated_tok": -5}]), "line 3: turn 0: generated_tok is -5"),
        (good_row(turns=[{}]), "line 3: no trajectory: Object missing required field `generated_tok`"),
        (good_row(prompt_tok=None), "line 3: no trajectory: Expected `int`, got `null`"),
        (good_row(turns=[]), "line 3: no turns"),
        (good_row(turns=[{"generated_tok": 1}] * 2), "line 3: turn 0: no tool return"),
        (good_row(group=7), "line 3: group 7 sample 0 stands in line 2 already"),
        (good_row(promt_tok=3), "line 3: unknown key 'promt_tok'\n  did you mean 'prompt_tok'?"),
        (good_row(status="lost"), "line 3: no trajectory: Invalid enum value 'lost'"),
        ('{"prompt_id": "p', "line 3: no trajectory: JSON is malformed"),
        ("[1]", "line 3: no trajectory: Expected `object`, got `array`"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, row: object, said: str) -> None:
    path = jsonl(tmp_path / "t.jsonl.gz", good_header(), good_row(group=7), row)
    assert said in message(path)


def test_a_misspelled_key_inside_a_tool_return_is_refused(tmp_path: Path) -> None:
    turns = [{"generated_tok": 1, "tool": {"tool": "bash", "payload_tok": 1, "latency": 2.0}}, {"generated_tok": 1}]
    path = jsonl(tmp_path / "t.jsonl.gz", good_header(), good_row(turns=turns))
    assert "line 2: unknown key 'latency'\n  did you mean 'latency_s'?" in message(path)


def test_other_schema_version(tmp_path: Path) -> None:
    said = message(jsonl(tmp_path / "t.jsonl.gz", good_header(schema_version=2, shape="new"), good_row()))
    assert "line 1: schema version of another Libra (got 2)" in said
    assert "allowed: 1" in said


def test_file_without_header(tmp_path: Path) -> None:
    assert "line 1: no trace header" in message(jsonl(tmp_path / "t.jsonl.gz", good_row()))
    assert "line 1: no trace header" in message(jsonl(tmp_path / "e.jsonl.gz"))


def test_header_only(tmp_path: Path) -> None:
    assert "no trajectories" in message(jsonl(tmp_path / "t.jsonl.gz", good_header()))


def test_cut_between_two_lines(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl.gz", good_header(num_trajectories=2), good_row())
    assert "the header promises 2 trajectories, the file holds 1" in message(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_truncated_at_any_place(tmp_path: Path, suffix: str, part: float) -> None:
    path = tmp_path / f"t{suffix}"
    write_trace(path, HEADER, [msgspec.structs.replace(ROWS[0], group=group) for group in range(200)])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    said = message(path)
    assert str(path) in said
    assert "truncated" in said or "no trace header" in said


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_flipped_byte_is_noticed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    write_trace(path, HEADER, [msgspec.structs.replace(ROWS[0], group=group) for group in range(200)])
    content = bytearray(path.read_bytes())
    content[60] ^= 0xFF
    path.write_bytes(content)
    assert str(path) in message(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_binary_rubbish(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(bytes(range(256)))
    assert "corrupted or not" in message(path)


def test_parquet_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    assert "no trace: " in message(path)


def test_bad_row_in_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_trace(path, HEADER, ROWS)
    table = pq.read_table(path)
    pq.write_table(table.set_column(3, "prompt_tok", pa.array([10, None], pa.int64())), path)
    assert "row 1: no trace: Expected `int`, got `null`" in message(path)
    pq.write_table(table.set_column(3, "prompt_tok", pa.array([10, -4], pa.int64())), path)
    assert "row 1: prompt_tok is -4" in message(path)


def test_absent_and_misnamed_files(tmp_path: Path) -> None:
    assert "no such file" in message(tmp_path / "t.parquet")
    assert "no name of a trace file (got '.csv')" in message(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("trajectory", "said"),
    [
        (ROWS[0], None),
        (msgspec.structs.replace(ROWS[1], reward=float("nan")), "reward is nan"),
        (msgspec.structs.replace(ROWS[1], prompt_id="\ud800"), "'\\ud800' is no valid text"),
        (msgspec.structs.replace(ROWS[1], prompt_tok=2**63), f"prompt_tok is {2**63}"),
        (msgspec.structs.replace(ROWS[1], turns=ROWS[0].turns[:1]), "turn 0: the last turn has a tool return"),
        (
            Trajectory("p", 0, 0, 1, (Turn(1, ToolReturn("t", 1, latency_s=-1.0)), Turn(1))),
            "turn 0: latency_s is -1.0",
        ),
        (
            Trajectory("p", 0, 0, 1, (Turn(4, spans=(VersionSpan(0, 3),)),)),
            "turn 0: version spans do not sum to generated_tok 4",
        ),
    ],
)
def test_problem_in(trajectory: Trajectory, said: str | None) -> None:
    assert problem_in(trajectory) == said
