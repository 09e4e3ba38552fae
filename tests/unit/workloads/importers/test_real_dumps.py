"""The public dumps in ../shared/traces: counts as their README gives them, and trajectories read by hand."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libra.core.records import ToolReturn, Turn
from libra.workloads.importers import ImportResult
from libra.workloads.trace_file import read_trace, write_trace

Imported = Callable[..., ImportResult]


@pytest.fixture
def traces(shared_root: Path) -> Path:
    folder = shared_root / "traces"
    if not folder.is_dir():
        pytest.skip("needs the public traces in ../shared/traces, which are not part of the product")
    return folder


def normalized(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def counts(result: ImportResult) -> tuple[int, int, int]:
    found = result.report.outcome
    assert not result.report.unread
    assert not result.report.duplicates
    return found.num_trajectories, found.num_groups, found.num_turns


def test_tau_bench(traces: Path, imported: Imported) -> None:
    result = imported("openai", traces / "tau-bench" / "gpt-4o-airline.json")
    assert counts(result) == (200, 50, 2454)
    assert set(Counter(row.group for row in result.trajectories).values()) == {4}
    assert sum(row.reward or 0 for row in result.trajectories) / 200 == 0.42
    assert len(result.report.outcome.censored) == 5, "neither the user nor a final tool ended these"
    assert result.report.outcome.num_failed == 72, "returns that start with Error, one more stands last and is left out"


def test_tau_bench_by_hand(traces: Path, imported: Imported) -> None:
    """Task 0, trial 0: the model asks in 91 characters, the user answers in 32; the first call has 25 + 16."""
    row = imported("openai", traces / "tau-bench" / "gpt-4o-airline.json").trajectories[0]
    assert (row.key, row.reward, row.status) == ("0/0", 0.0, "completed")
    assert len(row.turns) == 15
    assert row.turns[0] == Turn(23, ToolReturn("user", 8))
    assert row.turns[2].generated_tok == 11
    assert [turn.tool.tool for turn in row.turns if turn.tool][:6] == [
        "user", "user", "get_user_details", "search_direct_flight", "user", "search_onestop_flight",
    ]  # fmt: skip


def test_tau_bench_agrees_with_the_normalized_lines(traces: Path, imported: Imported) -> None:
    raw = imported("openai", traces / "tau-bench" / "gpt-4o-airline.json")
    lines = imported("normalized", traces / "tau-bench" / "normalized.jsonl.gz")
    assert counts(lines) == (200, 50, 2454)
    for mine, theirs in zip(raw.trajectories, lines.trajectories, strict=True):
        assert mine.key == theirs.key
        assert [turn.tool and (turn.tool.tool, turn.tool.status) for turn in mine.turns] == [
            turn.tool and (turn.tool.tool, turn.tool.status) for turn in theirs.turns
        ]
        assert mine.generated_tok == pytest.approx(theirs.generated_tok, abs=len(mine.turns)), "rounding alone"


def test_swe_agent(traces: Path, imported: Imported) -> None:
    result = imported("swe-agent", traces / "swe-agent" / "raw")
    assert counts(result) == (22, 22, 232), "all 22 have turns; one of them in its history only"
    assert [note for note in result.report.notes if "history only" in note] == [
        "trajectories__demonstrations__function_calling_simple.traj has a history only, no steps"
    ]
    assert result.report.outcome.num_unknown_latency == 210 - 36, "execution times in four files"
    assert "measured on the generated tokens of 3 of these trajectories: +7% to +35%" in result.report.token_counting
    lengths = sorted(len(row.turns) for row in result.trajectories)
    assert (lengths[11], lengths[-1]) == (11, 21)


def test_swe_agent_by_hand(traces: Path, imported: Imported) -> None:
    """Five steps; the first: 304 characters of thought and 26 of call, 110 of observation, 0.28 s."""
    result = imported("swe-agent", traces / "swe-agent" / "raw")
    row = next(row for row in result.trajectories if row.prompt_id.endswith("sweagenttestrepo-1c2844"))
    assert [turn.tool.tool for turn in row.turns if turn.tool] == ["find_file", "open", "edit", "python3"]
    first = row.turns[0].tool
    assert first is not None
    assert row.turns[0].generated_tok == 83
    assert (first.payload_tok, first.status, first.latency_s) == (28, "ok", 0.2814128329991945)
    assert row.turns[-1].tool is None
    assert row.status == "completed"


def test_swe_agent_statuses_are_not_fooled_by_shown_files(traces: Path, imported: Imported) -> None:
    """The normalized lines call 21 returns failures for the word error in them, and miss three timeouts."""
    raw = imported("swe-agent", traces / "swe-agent" / "raw")
    lines = imported("normalized", traces / "swe-agent" / "normalized.jsonl.gz")
    assert counts(lines) == (22, 22, 232)
    assert lines.report.outcome.num_failed == 39
    assert raw.report.outcome.num_failed == 21


def test_mini_swe_agent(traces: Path, imported: Imported) -> None:
    result = imported("mini-swe-agent", traces / "mini-swe-agent")
    assert counts(result) == (2, 2, 12)
    issue, local = result.trajectories
    assert [turn.tool.status for turn in issue.turns if turn.tool] == [
        "error", "ok", "ok", "ok", "ok", "ok", "ok", "error", "ok",
    ]  # fmt: skip
    assert local.turns == (Turn(19, ToolReturn("bash", 15)), Turn(25)), "73, 57 and 98 characters"
    assert [row.status for row in result.trajectories] == ["completed", "completed"]


def test_kv_cache_tester_sessions(traces: Path, imported: Imported) -> None:
    """Six sessions end their turn 8 times; one goes on after the last end."""
    result = imported("kv-cache-tester", traces / "kv-cache-tester" / "raw")
    assert counts(result) == (9, 9, 85)
    assert [(row.prompt_id, len(row.turns)) for row in result.trajectories] == [
        ("trace_0040#0", 3), ("trace_0040#1", 3), ("trace_0166#0", 26), ("trace_0175#0", 18), ("trace_0180#0", 6),
        ("trace_0204#0", 4), ("trace_0204#1", 1), ("trace_0529#0", 21), ("trace_0529#1", 3),
    ]  # fmt: skip
    assert [row.prompt_id for row in result.trajectories if row.is_censored] == ["trace_0529#1"]
    assert result.report.token_counting == "exact"
    first = result.trajectories[0]
    assert first.prompt_tok == 256_006
    assert [(turn.generated_tok, turn.tool and turn.tool.payload_tok) for turn in first.turns] == [
        (765, 258_356 - 256_006 - 765), (319, 259_848 - 258_356 - 319), (858, None),
    ]  # fmt: skip
    assert [turn.tool.latency_s for turn in first.turns if turn.tool] == pytest.approx([35 - 23.21, 73 - 35 - 14.18])


def test_kv_cache_tester_lost_answers_join_what_the_normalized_lines_cut(traces: Path, imported: Imported) -> None:
    """Same calls, same tokens: 31 pieces there, 9 episodes here."""
    raw = imported("kv-cache-tester", traces / "kv-cache-tester" / "raw")
    names = {row.prompt_id.split("#")[0] for row in raw.trajectories}
    pieces = [
        each for each in normalized(traces / "kv-cache-tester" / "episodes.jsonl.gz") if each["prompt_id"] in names
    ]
    assert len(pieces) == 31
    generated = [turn["gen"] for piece in pieces for turn in piece["turns"]]
    assert generated == [turn.generated_tok for row in raw.trajectories for turn in row.turns]


def test_normalized_episodes(traces: Path, imported: Imported, tmp_path: Path) -> None:
    result = imported("normalized", traces / "kv-cache-tester" / "episodes.jsonl.gz")
    assert counts(result) == (7505, 7505, 48_658)
    assert result.report.counted["negative_payload"] == 4531
    assert result.report.outcome.num_unknown_status == 41_153
    assert len(result.report.outcome.censored) == 4774, "4,293 without a stop reason, 481 that stop at a call"
    write_trace(tmp_path / "t.jsonl.gz", result.header, result.trajectories)
    assert read_trace(tmp_path / "t.jsonl.gz")[1] == result.trajectories


def test_normalized_agents(traces: Path, imported: Imported) -> None:
    result = imported("normalized", *(traces / "kv-cache-tester").glob("*agents.jsonl.gz"))
    assert counts(result) == (63, 63, 676)
    assert len(result.report.outcome.censored) == 4, "0.937 of 63 completed"


def test_benchmarks_of_prime_rl_are_no_rollouts(traces: Path, imported: Imported) -> None:
    """Measured throughput of its trainer, with the framework's name and none of its rollouts."""
    folder = traces / "prime-rl-benchmarks"
    if not folder.is_dir():
        pytest.skip("needs prime-rl-benchmarks in ../shared/traces")
    result = imported("auto", folder, traces / "mini-swe-agent")
    assert len(result.trajectories) == 2
    assert {each.reason for each in result.report.unread} == {"no known format (1 rows)"}


def test_request_traces_are_refused(traces: Path, imported: Imported) -> None:
    result = imported("auto", traces / "mooncake", traces / "mini-swe-agent")
    assert len(result.trajectories) == 2
    assert [each.reason for each in result.report.unread] == [
        "no known format (12,031 rows)",
        "no known format (3,993 rows)",
    ]
