"""Replay of traces: groups, epochs, what is held back, and every way to fit a trace to a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.core.errors import TraceError
from libra.core.records import ToolReturn, Trajectory, Turn, VersionSpan
from libra.core.registry import parse_options
from libra.workloads.base import PROFILE_GROUP, Workload
from libra.workloads.trace import WORKLOAD, TraceWorkload
from libra.workloads.trace_file import TraceHeader, write_trace
from libra.workloads.trace_fit import truncated

HEADER = TraceHeader(source="hand-made", token_counting="exact")


def row(group: int, sample: int, generated: int = 10, prompt: str | None = None, **changes: object) -> Trajectory:
    turns = (Turn(generated, ToolReturn("bash", 5, "ok", 2.0)), Turn(3))
    fields: dict = {"prompt_id": prompt or f"p{group}", "group": group, "sample": sample, "prompt_tok": 100}
    return Trajectory(**(fields | {"turns": turns} | changes))


def build(
    folder: Path, rows: list[Trajectory], seed: int = 0, limit_tok: int = 40_960, **options: object
) -> TraceWorkload:
    path = folder / "made.jsonl.gz"
    write_trace(path, HEADER, rows)
    return WORKLOAD.build(parse_options(WORKLOAD.options, {"file": str(path), **options}, "trace"), seed, limit_tok)


def grouped(num_prompts: int = 10, num_samples: int = 4) -> list[Trajectory]:
    return [row(g, k, generated=1 + 100 * g + k) for g in range(num_prompts) for k in range(num_samples)]


def lone(number: int = 100) -> list[Trajectory]:
    return [row(g, 0, generated=1 + g) for g in range(number)]


def first_turns(rows: tuple[Trajectory, ...]) -> list[int]:
    return [t.turns[0].generated_tok for t in rows]


def test_a_prompts_samples_are_repeated_to_a_group(tmp_path: Path) -> None:
    workload = build(tmp_path, grouped())
    assert isinstance(workload, Workload)
    group = workload.group(0)
    assert [(t.group, t.sample) for t in group] == [(0, k) for k in range(16)]
    assert len({t.prompt_id for t in group}) == 1
    assert sorted(first_turns(group)) == sorted(list(set(first_turns(group))) * 4)
    assert workload.warnings == ("The prompts have 4 samples, repeated to 16: siblings are copies.",)
    assert (workload.name, workload.batch, workload.num_steps) == ("trace:made", 32, 4)


def test_every_prompt_once_an_epoch_then_reshuffled(tmp_path: Path) -> None:
    workload = build(tmp_path, grouped(), num_steps=8)
    epochs = [[workload.group(g)[0].prompt_id for g in range(k, k + 8)] for k in (0, 8)]
    assert set(epochs[0]) == set(epochs[1]) and len(set(epochs[0])) == 8
    assert epochs[0] != epochs[1]
    assert workload.warnings[-1] == "16 groups are asked for: the trace is replayed 2.0 times, unchanged."


def test_without_groups_trajectories_share_nothing(tmp_path: Path) -> None:
    workload = build(tmp_path, lone())
    groups = [workload.group(g) for g in range(5)]
    lengths = [n for group in groups for n in first_turns(group)]
    assert len(set(lengths)) == 80  # 100 less a fifth held back, all different
    again = [t for g in range(5, 10) for t in workload.group(g)]
    assert len({t.prompt_id for group in groups for t in group} | {t.prompt_id for t in again}) == 160
    assert workload.warnings[0].startswith("No groups in this trace: groups are made of unrelated trajectories")


@pytest.mark.parametrize("rows", [grouped(), lone()], ids=["groups", "no groups"])
def test_the_profile_is_held_back(tmp_path: Path, rows: list[Trajectory]) -> None:
    workload = build(tmp_path, rows)
    held = set(first_turns(workload.profile(4)))
    replayed = {n for g in range(20) for n in first_turns(workload.group(g))}
    assert held and not held & replayed
    assert len(workload.profile(4)) == 64
    assert workload.profile(4)[:32] == workload.profile(2)
    assert min(t.group for t in workload.profile(4)) == PROFILE_GROUP


@pytest.mark.parametrize("rows", [grouped(), lone()], ids=["groups", "no groups"])
def test_order_depends_on_the_seed_and_not_on_asking(tmp_path: Path, rows: list[Trajectory]) -> None:
    one, two, other = (build(tmp_path, rows, seed=seed) for seed in (0, 0, 1))
    assert [one.group(g) for g in range(9)] == [two.group(g) for g in reversed(range(9))][::-1]
    assert any(one.group(g) != other.group(g) for g in range(3))


def test_a_trajectory_beyond_the_limit_is_an_error_that_names_the_ways_out(tmp_path: Path) -> None:
    rows = [*lone(20), row(20, 0, generated=500), row(21, 0, generated=900)]
    with pytest.raises(TraceError) as caught:
        build(tmp_path, rows, limit_tok=400)
    text = str(caught.value)
    assert "2 of 22 trajectories are longer than the model's limit of 400 tokens; the longest has 1,008" in text
    assert all(way in text for way in ("truncate", "rescale", "drop", "longer context limit"))


def test_truncated_ones_are_cut_and_marked(tmp_path: Path) -> None:
    workload = build(tmp_path, [row(0, k, generated=500) for k in range(16)], limit_tok=400, over_limit="truncate")
    (cut,) = {(t.status, t.total_tok, len(t.turns)) for t in workload.group(0)}
    assert cut == ("truncated", 400, 1)
    assert workload.warnings[0] == "16 of 16 trajectories are cut at 400 tokens and marked truncated."


def test_prompts_beyond_the_limit_cannot_be_cut(tmp_path: Path) -> None:
    rows = [*lone(20), row(20, 0, generated=500), row(21, 0, prompt_tok=400)]
    assert build(tmp_path, rows, limit_tok=400, over_limit="truncate").warnings[:2] == (
        "1 of 22 trajectories is cut at 400 tokens and marked truncated.",
        "1 of 22 trajectories is left out: the prompt alone fills the context.",
    )
    with pytest.raises(TraceError, match="nothing to replay: every prompt alone fills the context"):
        build(tmp_path, rows[-1:], limit_tok=400, over_limit="truncate")


def test_a_shortened_prompt_keeps_the_turns(tmp_path: Path) -> None:
    rows = [row(0, k, prompt_tok=5000, generated=30) for k in range(16)]
    turns_tok = rows[0].total_tok - 5000
    workload = build(tmp_path, rows, limit_tok=1000, over_limit="shorten_prompt")
    (kept,) = {(t.status, t.total_tok, t.prompt_tok, len(t.turns)) for t in workload.group(0)}
    assert kept == ("completed", 1000, 1000 - turns_tok, len(rows[0].turns))
    assert workload.warnings[0].startswith("16 of 16 trajectories are too long: their prompts are shortened")


def test_turns_beyond_the_limit_are_truncated_after_a_short_prompt(tmp_path: Path) -> None:
    rows = [row(0, k, prompt_tok=5000, generated=900) for k in range(16)]
    workload = build(tmp_path, rows, limit_tok=1000, over_limit="shorten_prompt")
    (cut,) = {(t.status, t.total_tok, t.prompt_tok) for t in workload.group(0)}
    assert cut == ("truncated", 1000, 256)


@pytest.mark.parametrize(
    ("limit_tok", "turns"),
    [
        (117, (Turn(10, ToolReturn("bash", 5, "ok", 2.0)), Turn(2))),
        (115, (Turn(10),)),  # the payload fits and no token after it
        (114, (Turn(10),)),
        (116, (Turn(10, ToolReturn("bash", 5, "ok", 2.0)), Turn(1))),
        (104, (Turn(4),)),
        (100, None),
    ],
)
def test_where_a_cut_falls(limit_tok: int, turns: tuple[Turn, ...] | None) -> None:
    whole = row(0, 0)
    found = truncated(whole, limit_tok)
    assert (found and found.turns) == turns
    assert truncated(whole, whole.total_tok) is whole
    assert found is None or (found.status == "truncated" and found.total_tok <= limit_tok)


def test_rescaled_ones_keep_their_proportions_and_every_turn(tmp_path: Path) -> None:
    rows = [row(g, 0, generated=1 + 100 * g) for g in range(40)]
    workload = build(tmp_path, rows, limit_tok=1_000, over_limit="rescale")
    found = [t for g in range(2) for t in workload.group(g)] + list(workload.profile(1))
    assert max(t.total_tok for t in found) <= 1_000
    assert {t.status for t in found} == {"completed"}
    assert all(turn.generated_tok >= 1 for t in found for turn in t.turns)
    assert {t.prompt_tok for t in found} == {int(100 * 997 / 4_009)}
    assert workload.warnings[0] == "All lengths are multiplied by 0.249, so that the longest fits the limit."


def test_dropped_ones_are_counted(tmp_path: Path) -> None:
    rows = [*lone(20), row(20, 0, generated=500)]
    workload = build(tmp_path, rows, limit_tok=400, over_limit="drop")
    assert workload.warnings[0] == "1 of 21 trajectories is left out: beyond 400 tokens."
    with pytest.raises(TraceError, match="nothing to replay: every trajectory is beyond the limit"):
        build(tmp_path, [row(0, 0, generated=500)], limit_tok=400, over_limit="drop")


def test_unknown_long_and_empty_values_are_filled_and_said(tmp_path: Path) -> None:
    turns = (
        Turn(0, ToolReturn("a", 1)),
        Turn(5, ToolReturn("b", 1, "error", 900.0), (VersionSpan(3, 5),)),
        Turn(2),
    )
    workload = build(tmp_path, [row(0, k, turns=turns, prompt_tok=0) for k in range(16)], default_tool_s=0.5)
    first = workload.group(0)[0]
    assert first.prompt_tok == 1
    assert first.turns == (Turn(1, ToolReturn("a", 1, "ok", 0.5)), Turn(5, ToolReturn("b", 1, "error", 600.0)), Turn(2))
    assert workload.warnings == (
        "16 of 32 tool returns have no time: 0.5 s is assumed.",
        "16 of 32 tool times are capped at 600 s.",
        "16 turns without a generated token count as one token.",
        "16 prompts without a token count as one token.",
        "The trace has a single prompt: the profile is made of what is replayed.",
        "2 groups are asked for: the trace is replayed 2.0 times, unchanged.",
    )


def test_short_trajectories_may_be_left_out(tmp_path: Path) -> None:
    rows = [*lone(30), row(30, 0, turns=(Turn(7),))]
    assert build(tmp_path, rows, min_turns=2).warnings[0] == "1 of 31 trajectories is left out: fewer than 2 turns."
    with pytest.raises(TraceError, match="no trajectory has 3 turns"):
        build(tmp_path, rows, min_turns=3)


def test_a_trace_smaller_than_a_group_is_repeated(tmp_path: Path) -> None:
    workload = build(tmp_path, lone(6))
    assert len(workload.group(0)) == 16 and len(set(first_turns(workload.group(0)))) == 5
    assert workload.warnings[1] == "Only 5 trajectories, repeated to groups of 16."


def test_a_group_takes_part_of_a_larger_one(tmp_path: Path) -> None:
    workload = build(tmp_path, grouped(num_samples=40))
    assert len(set(first_turns(workload.group(0)))) == 16
    assert "up to 40 samples" in workload.warnings[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    options = parse_options(WORKLOAD.options, {"file": str(tmp_path / "no.parquet")}, "trace")
    with pytest.raises(TraceError, match="no such file"):
        WORKLOAD.build(options, 0, 40_960)


def test_parameters_cover_options_and_header(tmp_path: Path) -> None:
    found = {p.name: p for p in build(tmp_path, grouped(), prompts=3).parameters()}
    assert set(WORKLOAD.options.model_fields) < set(found)
    assert found["source"].value == "hand-made"
    assert found["prompts"].source.startswith("Set for this run; the default is 2 ")
    assert found["steps"].value == "2"
