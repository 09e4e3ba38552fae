"""Trajectories come out of an event log as they were played."""

from __future__ import annotations

from libra.core.events import Event, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.runtime.recorded import spread, trajectories, whole_groups


def log(*events: Event) -> list[tuple[Event, tuple[()]]]:
    return [(event, ()) for event in events]


def start(number: int, group: int, sample: int) -> TrajectoryStart:
    return TrajectoryStart(0.0, number, "p", group, sample, 10, 0)


def end(number: int, total_tok: int) -> TrajectoryEnd:
    return TrajectoryEnd(2.0, number, 0, "completed", 0, total_tok, 1, 0.0, 1.0)


def test_turns_have_their_tokens_and_tools() -> None:
    back = ToolReturned(1.0, 7, 0, 1, "search", 30, "ok", 0.5, 45)
    (row,) = trajectories(log(start(7, 3, 1), back, end(7, 52)))
    turns = (Turn(5, ToolReturn("search", 30, "ok", 0.5)), Turn(7))
    assert row == Trajectory("p", 3, 1, 10, turns, reward=1.0)


def test_a_turns_end_told_too_late_loses_no_token() -> None:
    """The first return counts the turn's own 8 tokens as payload, so the second one's payload is negative."""
    first = ToolReturned(1.0, 7, 0, 0, "edit", 18, "ok", 0.0, 28)
    second = ToolReturned(1.5, 7, 0, 2, "bash", -3, "ok", 0.0, 37)
    (row,) = trajectories(log(start(7, 0, 0), first, second, end(7, 40)))
    assert [(turn.generated_tok, turn.tool.payload_tok if turn.tool else None) for turn in row.turns] == [
        (0, 18), (9, 0), (3, None)
    ]  # fmt: skip
    assert row.total_tok == 40


def test_groups_that_were_cut_off_are_left_out() -> None:
    rows = trajectories(log(start(0, 0, 0), start(1, 0, 1), start(2, 1, 0), end(0, 20), end(2, 20), end(1, 20)))
    assert [row.key for row in rows] == ["0/0", "0/1", "1/0"]
    assert whole_groups(rows, 2) == [tuple(rows[:2])]


def test_a_few_groups_stand_for_all_parts_of_a_run() -> None:
    groups = [(Trajectory("p", number, 0, 10, (Turn(1),)),) for number in range(10)]
    assert [group[0].group for group in spread(groups, 3)] == [1, 5, 8]
    assert [group[0].group for group in spread(groups, 1)] == [5]
    assert spread(groups, 10) == spread(groups, 99) == groups
