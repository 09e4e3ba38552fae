"""Each format's small dump, trajectory by trajectory, against what was worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from libra.core.records import ToolReturn, Turn
from libra.workloads.importers import ImportResult

Imported = Callable[..., ImportResult]
Lines = Callable[..., Path]


def test_verl(dumps: Path, imported: Imported) -> None:
    result = imported("verl", dumps / "verl" / "1.jsonl")
    searched, answer, twice, again = result.trajectories
    assert searched.prompt_id == twice.prompt_id != answer.prompt_id == again.prompt_id
    assert [row.key for row in result.trajectories] == ["0/0", "1/0", "0/1", "1/1"], "groups need not be consecutive"
    assert searched.turns[0].tool == ToolReturn("search", 4), "16 characters of 'Jane Doe, 1901' and line ends"
    assert searched.turns[1:] == (Turn(3),), "'Jane Doe.' is 9 characters"
    assert (searched.reward, searched.status) == (1.0, "completed")
    assert answer.turns == (Turn(1),)
    assert twice.turns[0].tool == ToolReturn("search", 7, "error"), "two answers: summed, the worst, the first's name"
    assert twice.status == "truncated", "its last call was never answered"
    assert not result.report.duplicates, "equal samples of one prompt are samples"
    assert result.header.token_counting == "chars/4 (no tokenizer), error unknown"


def test_verl_search_r1_tags_and_refused_actions(dumps: Path, imported: Imported) -> None:
    searched, refused = imported("verl", dumps / "verl" / "2.jsonl").trajectories
    assert [turn.tool.tool for turn in searched.turns if turn.tool] == ["search"]
    assert [turn.tool.status for turn in refused.turns if turn.tool] == ["error"]
    assert refused.turns[0].generated_tok == 2, "'<search' alone: the feedback is no generation"


def test_verl_visits_of_a_prompt_in_two_steps_are_two_groups(dumps: Path, imported: Imported) -> None:
    result = imported("verl", dumps / "verl")
    of_prompt = [row for row in result.trajectories if row.prompt_id == result.trajectories[0].prompt_id]
    assert [row.key for row in of_prompt] == ["0/0", "0/1", "2/0", "2/1"]


def test_verl_a_line_with_the_word_user_is_text(imported: Imported, lines: Lines) -> None:
    path = lines("1.jsonl", {"input": "q", "output": "the fields are\nuser\npassword", "score": 0.0, "step": 1})
    assert imported("verl", path).trajectories[0].turns == (Turn(7),)


def test_verl_user_turns_are_returns_of_a_user(imported: Imported, lines: Lines) -> None:
    output = "Which one?\nuser\nthe second\nassistant\nDone."
    result = imported("verl", lines("1.jsonl", {"input": "q", "output": output, "score": 0.0, "step": 1}))
    assert result.trajectories[0].turns == (Turn(3, ToolReturn("user", 3)), Turn(2))
    assert result.report.counted["user_reply"] == 1


def test_verl_score_that_is_no_number(imported: Imported, lines: Lines) -> None:
    result = imported("verl", lines("1.jsonl", '{"input": "q", "output": "a", "score": NaN, "step": 1}'))
    assert result.trajectories[0].reward is None
    assert result.report.counted["bad_reward"] == 1


def test_tau_bench(dumps: Path, imported: Imported) -> None:
    result = imported("openai", dumps / "openai" / "tau.json")
    shipped, cancelled, cut, done = result.trajectories
    assert [row.key for row in result.trajectories] == ["0/0", "1/0", "0/1", "1/1"]
    assert shipped.prompt_id == cut.prompt_id != cancelled.prompt_id == done.prompt_id
    assert shipped.prompt_tok == 6 + 4, "'You help with orders.' and 'Hello, order 7?'"
    assert shipped.turns == (Turn(5, ToolReturn("get_order", 8)), Turn(5))
    assert cancelled.turns[0].tool == ToolReturn("cancel", 6, "error")
    assert [row.status for row in result.trajectories] == ["completed", "completed", "truncated", "completed"]
    assert [row.reward for row in result.trajectories] == [1.0, 0.0, 0.0, 1.0]
    assert cut.turns[0].tool == ToolReturn("user", 3)
    assert result.report.counted["trailing"] == 4
    assert "1 replies of a (simulated) user" in "\n".join(result.report.lines())


def test_openai_parallel_calls_and_usage(dumps: Path, imported: Imported) -> None:
    result = imported("openai", dumps / "openai" / "chats.jsonl")
    parallel, sibling, exact = result.trajectories
    assert parallel.turns[0] == Turn(10, ToolReturn("weather", 14, "error"))
    assert (parallel.key, sibling.key, exact.key) == ("0/0", "0/1", "1/0"), "one prompt, two samples"
    assert exact.prompt_tok == 10
    assert exact.turns == (Turn(5, ToolReturn("count", 15)), Turn(2)), "30 - 10 - 5"
    assert result.report.token_counting == ("1 trajectories exact, 2 chars/4 (no tokenizer), error unknown")
    assert result.report.counted["parallel"] == 1


def test_swe_agent_old(dumps: Path, imported: Imported) -> None:
    result = imported("swe-agent", dumps / "swe-agent" / "old.traj")
    (row,) = result.trajectories
    assert [turn.generated_tok for turn in row.turns] == [9, 6, 5], "36, 24 and 20 characters"
    assert [(turn.tool.tool, turn.tool.status) for turn in row.turns if turn.tool] == [
        ("python", "error"),
        ("pytest", "ok"),
    ], "'12 passed, 0 errors' is no failure"
    assert row.prompt_tok == 6 + 6 + 1 + 3, "with the demonstration, which has a message of the assistant"
    assert result.report.counted["demonstration"] == 2
    assert "measured on the generated tokens of 1 of these trajectories: +0%" in result.header.token_counting


def test_swe_agent_new(dumps: Path, imported: Imported) -> None:
    (row,) = imported("swe-agent", dumps / "swe-agent" / "new.traj").trajectories
    assert row.turns == (
        Turn(8, ToolReturn("find_file", 9, "error", 0.25)),
        Turn(3, ToolReturn("ls", 1, "ok", 1.5)),
        Turn(4),
    ), "the call is counted with the thought: 16 + 14, 7 + 2 and 7 + 8 characters"
    assert row.status == "truncated", "exit_cost"


def test_swe_agent_history_only(dumps: Path, imported: Imported) -> None:
    result = imported("swe-agent", dumps / "swe-agent" / "history_only.traj")
    (row,) = result.trajectories
    assert [turn.tool for turn in row.turns] == [ToolReturn("open", 11), None], "a shown file may say Error"
    assert row.status == "completed"
    assert "history_only.traj has a history only, no steps" in result.report.notes


def test_mini_swe_agent_v1(dumps: Path, imported: Imported) -> None:
    (row,) = imported("mini-swe-agent", dumps / "mini-swe-agent" / "v1.traj.json").trajectories
    assert [turn.tool.status for turn in row.turns if turn.tool] == ["error", "error", "ok", "timeout"]
    assert {turn.tool.tool for turn in row.turns if turn.tool} == {"bash"}
    assert row.status == "completed"


def test_mini_swe_agent_v2(dumps: Path, imported: Imported) -> None:
    result = imported("mini-swe-agent", dumps / "mini-swe-agent" / "v2.traj.json")
    (row,) = result.trajectories
    assert row.prompt_id == "repo__1"
    assert row.prompt_tok == 40
    assert row.turns == (
        Turn(12, ToolReturn("bash", 18, "ok", 0.5)),
        Turn(20, ToolReturn("bash", 20, "error", 2.25)),
        Turn(9),
    ), "payloads: 70 - 40 - 12 and 110 - 70 - 20"
    assert result.report.token_counting == "exact"


def test_kv_cache_tester(dumps: Path, imported: Imported) -> None:
    result = imported("kv-cache-tester", dumps / "kv-cache-tester" / "session.json")
    first, second, agent = result.trajectories
    assert first.turns == (
        Turn(100, ToolReturn("tool_use", 50, "unknown", 3.0)),
        Turn(40, ToolReturn("tool_use", 110, "unknown", None)),
        Turn(60, ToolReturn("user", 0, "unknown", 3.0)),
        Turn(30),
    ), "a lost answer does not end an episode, nor does a compaction; its negative payload counts 0"
    assert (first.prompt_id, first.status) == ("trace_9001#0", "completed")
    assert second.turns == (Turn(50, ToolReturn("agent", 0, "unknown", 10.0)), Turn(25))
    assert second.status == "aborted", "the recording stops at a call"
    assert (agent.prompt_id, agent.status, agent.prompt_tok) == ("trace_9001/agent_1", "completed", 200)
    assert agent.turns == (Turn(20, ToolReturn("tool_use", 30, "unknown", 1.0)), Turn(10))
    assert [row.group for row in result.trajectories] == [0, 1, 2]
    counted = result.report.counted
    assert (counted["negative_payload"], counted["compaction"], counted["agent"], counted["no_stop"]) == (2, 1, 1, 1)


def test_kv_cache_tester_a_bad_episode_loses_no_other(imported: Imported, lines: Lines) -> None:
    calls = [{"in": 10, "out": 1, "stop": "end_turn"}, {"in": -5, "out": 1, "stop": "end_turn"}, {"in": 9}]
    result = imported("kv-cache-tester", lines("s.json", {"id": "s", "block_size": 64, "requests": calls}))
    assert [row.prompt_id for row in result.trajectories] == ["s#0"]
    assert [each.reason for each in result.report.unread] == [
        "s#1: negative token count in turn 0",
        "s#2: request 0 has no token counts (`in`, `out`)",
    ]


def test_normalized(dumps: Path, imported: Imported) -> None:
    result = imported("normalized", dumps / "normalized" / "lines.jsonl")
    good, bad, ended, open_end = result.trajectories
    assert good.turns == (Turn(5, ToolReturn("search", 20, "ok", 0.5)), Turn(7))
    assert bad.turns == (Turn(6, ToolReturn("search", 0, "error")), Turn(8, ToolReturn("user", 4)), Turn(9))
    assert (good.key, bad.key) == ("0/0", "0/1")
    assert (ended.group, open_end.group) == (1, 2), "episodes of a session are no samples of one prompt"
    assert (good.reward, bad.reward, ended.reward) == (1.0, 0.0, None)
    assert (ended.status, open_end.status) == ("completed", "aborted")
    assert result.report.outcome.num_unknown_latency == 2
    assert result.report.outcome.num_unknown_status == 1
