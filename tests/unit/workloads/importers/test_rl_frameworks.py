"""Dumps of RL frameworks (AReaL, slime, prime-rl, Search-R1), trajectory by trajectory, against what was worked out by
hand. `tests/data/slime/rollout_3.pt` was written by torch.save with the fields of slime's `Sample.to_dict()`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from libra.core.records import ToolReturn, Turn, VersionSpan
from libra.workloads.importers import ImportResult

Imported = Callable[..., ImportResult]
Lines = Callable[..., Path]


def reasons(result: ImportResult) -> list[str]:
    return [each.reason for each in result.report.unread]


def test_areal_sessions(dumps: Path, imported: Imported) -> None:
    result = imported("areal", dumps / "areal" / "sessions-r0.jsonl")
    searched, sibling, filtered, failed = result.trajectories
    assert searched.turns == (Turn(76, ToolReturn("toolcall", 0, "unknown", 1.25)), Turn(38)), "2 s and 1 s at 38 tok/s"
    assert (searched.key, sibling.key, filtered.key) == ("0/0", "0/1", "1/0"), "a task is a group"
    assert [row.status for row in result.trajectories] == ["completed", "completed", "completed", "aborted"]
    assert failed.turns == (Turn(38, ToolReturn("gap", 0, "unknown", 1.0)), Turn(1)), "the last call never ended"
    assert result.report.counted["rejected"] == 1
    assert result.header.token_counting.startswith("generation time x 38 tok/s (no counts in session traces")


def test_areal_requests_of_before(dumps: Path, imported: Imported) -> None:
    (row,) = imported("areal", dumps / "areal" / "requests-r1.jsonl").trajectories
    assert row.turns == (Turn(114, ToolReturn("gap", 0, "unknown", 2.0)), Turn(76))
    assert row.prompt_id == "request-7"


def test_areal_parallel_generations_are_samples(imported: Imported, lines: Lines) -> None:
    spans = [{"start_ts": 1.0, "end_ts": 3.0}, {"start_ts": 1.5, "end_ts": 2.5}]
    row = {"request_id": 1, "submit_ts": 1.0, "status": "accepted", "phases": {"generate": spans}}
    nothing = {"request_id": 2, "submit_ts": 1.0, "status": "dropped", "reason": "stale"}
    backwards = row | {"request_id": 3, "phases": {"generate": [{"start_ts": 2.0, "end_ts": 1.0}]}}
    result = imported("areal", lines("requests-r0.jsonl", row, nothing, backwards))
    assert [(each.key, each.turns) for each in result.trajectories] == [("0/0", (Turn(76),)), ("0/1", (Turn(38),))]
    assert reasons(result) == ["no turns: nothing was generated (dropped, stale)", "a phase ends before it starts"]


def test_areal_rollouts_have_versions(dumps: Path, imported: Imported) -> None:
    result = imported("areal", dumps / "areal" / "rollout")
    one, mixed = result.trajectories
    assert one.turns == (Turn(60, None, (VersionSpan(4, 60),)),)
    assert (one.prompt_tok, one.reward) == (30, 1.0)
    assert mixed.turns == (Turn(100),), "versions 4 and 5, nobody knows where one ends"
    assert result.report.counted["mixed_versions"] == 1
    assert result.header.token_counting == "exact"


def test_slime(dumps: Path, imported: Imported) -> None:
    result = imported("slime", dumps / "slime" / "rollout_3.pt")
    used, cut, several, masked = result.trajectories
    assert used.turns == (
        Turn(6, ToolReturn("python", 4, "ok", 1.5), (VersionSpan(3, 6),)),
        Turn(5, None, (VersionSpan(4, 5),)),
    ), "25 tokens, 15 of them the response: 6 generated, 4 of a tool, 5 generated"
    assert (used.prompt_tok, used.reward, used.status, used.key) == (10, 1.0, "completed", "0/0")
    assert (cut.prompt_tok, cut.turns[0].generated_tok, cut.reward) == (10, 8, 0.0), (
        "tokens are a tensor, the reward numpy"
    )
    assert cut.key == "0/1"
    assert [turn.tool and turn.tool.payload_tok for turn in several.turns] == [5, 5, None], "the last 6 are a return"
    assert [turn.tool and turn.tool.latency_s for turn in several.turns] == [1.5, 1.5, None], "3 s over two returns"
    assert (several.reward, masked.reward) == (0.5, None), "a score among others counts; two nameless values don't"
    assert masked.turns == (Turn(6),)
    assert [row.status for row in result.trajectories] == ["completed", "truncated", "aborted", "aborted"]
    assert result.report.counted == {
        "trailing": 1, "mixed_versions": 1, "spread_time": 1, "masked": 1, "status_text": 1,
    }  # fmt: skip
    assert result.header.token_counting == "exact"


def test_slime_samples_as_json(imported: Imported, lines: Lines) -> None:
    sample = {
        "group_index": 0,
        "index": 0,
        "tokens": [1] * 9,
        "response_length": 4,
        "prompt": "q",
        "status": "completed",
    }
    bad_mask, too_long = sample | {"loss_mask": [1], "index": 1}, sample | {"response_length": 10, "index": 2}
    result = imported("slime", lines("samples.jsonl", sample, bad_mask, too_long, sample | {"response_length": 0}))
    assert [row.turns for row in result.trajectories] == [(Turn(4),)]
    assert reasons(result) == [
        "a loss mask of 1 for a response of 4",
        "9 tokens, and a response of 10",
        "no turns: nothing was generated",
    ]


def test_slime_evaluations_are_groups_of_their_own(imported: Imported, lines: Lines) -> None:
    sample = {"group_index": 0, "index": 0, "tokens": [1] * 9, "response_length": 4, "prompt": "q", "loss_mask": None}
    files = lines("3.jsonl", sample), lines("eval_3.jsonl", sample | {"index": 1})
    assert [row.group for row in imported("slime", *files).trajectories] == [0, 1]


def test_prime_rl(dumps: Path, imported: Imported) -> None:
    result = imported("prime-rl", dumps / "prime-rl")
    used, cut, compacted, branch, failed = result.trajectories
    assert used.turns == (
        Turn(9, ToolReturn("python", 7, "ok", 1.5), (VersionSpan(7, 9),)),
        Turn(5, None, (VersionSpan(7, 5),)),
    ), "4 tokens of the tool's message and 3 that open the answer; 1.5 s from answer to request"
    assert used.prompt_tok == 6 + 5 + 3
    assert (used.reward, used.status, used.key) == (1.0, "completed", "0/0"), "the format's weight is 0"
    assert (cut.key, cut.status, cut.turns) == ("0/1", "truncated", (Turn(7),)), "versions 7 to 8: no span"
    assert sum(turn.generated_tok for turn in (*compacted.turns, *branch.turns)) == 9 + 4 + 3, "each counted once"
    assert (branch.prompt_tok, branch.prompt_id) == (9 + 6 + 3, "math/gsm-17/solver/branch-1")
    assert failed.turns[0].tool == ToolReturn("python", 8, "ok", 1.0), "without ids by usage: 32 - 15 - 9"
    assert (failed.key, failed.status) == ("1/1", "aborted")
    assert result.report.duplicates == (
        f"{dumps}/prime-rl/step_8/train/effective/traces.jsonl (t1/0): as "
        f"{dumps}/prime-rl/step_8/train/all/traces.jsonl, line 1",
    ), "`effective` repeats what `all` has, with advantages"
    assert result.header.token_counting == "exact"


def test_prime_rl_evaluations_without_groups_and_traces_alone(dumps: Path, imported: Imported, lines: Lines) -> None:
    rows = (dumps / "prime-rl" / "step_8" / "train" / "all" / "traces.jsonl").read_text().splitlines()[:2]
    episodes = [{key: value for key, value in json.loads(row).items() if key not in ("group", "run")} for row in rows]
    result = imported("auto", lines("traces.jsonl", *episodes))
    assert [row.key for row in result.trajectories] == ["0/0", "0/1"], "two runs of a task"
    assert [turn.spans for turn in result.trajectories[0].turns] == [(), ()]
    alone = imported("auto", lines("old.jsonl", *(episode["traces"][0] for episode in episodes)))
    assert [row.turns for row in alone.trajectories] == [row.turns for row in result.trajectories]


def test_prime_rl_broken_graphs_and_empty_episodes(dumps: Path, imported: Imported, lines: Lines) -> None:
    text = (dumps / "prime-rl" / "step_8" / "train" / "all" / "traces.jsonl").read_text().splitlines()[0]
    loop, outside, empty = json.loads(text), json.loads(text), json.loads(text)
    loop["traces"][0]["nodes"][0]["parent"] = 2
    outside["traces"][0]["nodes"][0]["parent"] = 77
    empty |= {"traces": [], "errors": [{"type": "SandboxError", "message": "no box"}]}
    result = imported("prime-rl", lines("traces.jsonl", text, loop, outside, empty))
    assert len(result.trajectories) == 1
    assert reasons(result) == [
        "trace 0: the message graph is broken at node 1",
        "trace 0: the message graph is broken at node 77",
        "no turns: an episode without traces (1 errors recorded)",
    ]


def test_search_r1_log_of_the_trainer(dumps: Path, imported: Imported) -> None:
    result = imported("search-r1", dumps / "search-r1" / "train_log.txt")
    answered, cut = result.trajectories
    assert [turn.tool and turn.tool.tool for turn in answered.turns] == ["search", None]
    assert answered.turns[0].generated_tok == 11, "'<think>hm</think><search> author </search>', 42 characters"
    assert answered.status == "completed"
    assert [turn.tool and (turn.tool.tool, turn.tool.status) for turn in cut.turns] == [
        ("none", "error"),
        ("search", "ok"),
        None,
    ], "the example tags of the prompt are no turns, and a refused action is an error"
    assert cut.status == "truncated", "a search that was never answered"
    assert result.report.counted["invalid_action"] == 1
    assert [each.where for each in result.report.unread] == []


def test_search_r1_tags_of_libra(dumps: Path, imported: Imported) -> None:
    result = imported("search-r1", dumps / "search-r1" / "libra.jsonl")
    answered, cut = result.trajectories
    assert answered.turns == (Turn(12, ToolReturn("search", 4)), Turn(7)), "46, 15 and 25 characters"
    assert (answered.key, cut.key, answered.reward) == ("0/0", "0/1", 1.0)
    assert cut.turns[0].tool == ToolReturn("search", 10, "error")
    assert (cut.status, len(cut.turns)) == ("truncated", 2)


def test_a_text_without_tags_is_no_rollout(imported: Imported, tmp_path: Path, lines: Lines) -> None:
    good = lines("a.jsonl", {"prompt": "q", "response": "<search> a </search><information>b</information> c"})
    (tmp_path / "notes.txt").write_text("nothing to see\n")
    result = imported("auto", good, tmp_path / "notes.txt")
    assert reasons(result) == ["neither JSON nor JSON Lines, or truncated: Expecting value: line 1 column 1 (char 0)"]


def test_a_wrong_format_names_the_right_one(dumps: Path, imported: Imported, lines: Lines) -> None:
    good = lines("good.jsonl", {"input": "q", "output": "a", "score": 1.0, "step": 1})
    wanted: dict[str, Any] = {"slime": "rollout_3.pt", "inspect-ai": "log.eval", "atif": "trajectory.json"}
    for name, file in wanted.items():
        result = imported("verl", good, dumps / name / file)
        assert reasons(result)[0].startswith(f"looks like format {name} (")
