"""The controller takes lists of commands, and answers only to events that ask."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from libra.core.commands import Command, Place
from libra.core.errors import PolicyError
from libra.core.events import Event, Placed, TrajectoryEnd, TrajectoryStart
from libra.results.schemas import StepRow, TrajectoryRow
from libra.runtime.controller import Controller

START = TrajectoryStart(1.0, 7, "p", 0, 0, 10, 0)


class Answers:
    """A policy that gives every event the same answer, and a recorder that keeps what it is told."""

    def __init__(self, answer: object) -> None:
        self.answer, self.seen = answer, list[Event]()

    def decide(self, event: Event) -> Sequence[Command]:
        return self.answer  # type: ignore[return-value]

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self.seen.append(event)

    def trajectory(self, row: TrajectoryRow) -> None: ...

    def step(self, row: StepRow) -> None: ...


def controller(answer: object) -> tuple[Controller, Answers]:
    policy = Answers(answer)
    return Controller(policy, policy, lambda: 0.0), policy


@pytest.mark.parametrize("answer", [None, Place(7, 0), "hello", 3])
def test_an_answer_that_is_no_sequence_is_named(answer: object) -> None:
    desk, _ = controller(answer)
    with pytest.raises(PolicyError, match=r"TrajectoryStart at 1.000 s was answered with .* a sequence"):
        desk.emit(START, lambda command: None)


@pytest.mark.parametrize("event", [Placed(2.0, 7, 0, "start"), TrajectoryEnd(3.0, 7, 0, "completed", 5, 15, 1, 0.0)])
def test_what_only_informs_may_not_be_answered(event: Event) -> None:
    desk, _ = controller([Place(7, 0)])
    with pytest.raises(PolicyError, match="only informs"):
        desk.emit(event, lambda command: None)


def test_acknowledgements_wait_for_the_command_that_caused_them() -> None:
    desk, policy = controller(())
    policy.answer = [Place(7, 0)]

    def apply(command: Command) -> None:
        policy.answer = ()
        desk.emit(Placed(1.0, 7, 0, "start"), apply)
        assert len(policy.seen) == 1, "no recursion"

    desk.emit(START, apply)
    assert [type(event) for event in policy.seen] == [TrajectoryStart, Placed]
