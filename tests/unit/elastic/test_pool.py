from __future__ import annotations

from collections import deque
from typing import get_args

import pytest

from libra.elastic.pool import (
    SENDING,
    TRANSITIONS,
    IllegalMove,
    Member,
    Membership,
    MemberState,
    Message,
    Signal,
    advance,
)

JOIN: tuple[Signal, ...] = ("request", "fetch", "fetched", "zero_step", "align", "activate")


def joined(upto: Signal = "activate") -> Membership:
    pool = Membership()
    for signal in JOIN[: JOIN.index(upto) + 1]:
        pool = pool.apply(0, signal, 5)
    return pool


def test_every_state_and_signal_is_spoken_for() -> None:
    assert set(TRANSITIONS) == set(get_args(MemberState))
    assert {signal for moves in TRANSITIONS.values() for signal in moves} == set(get_args(Signal))


@pytest.mark.parametrize("state", get_args(MemberState))
@pytest.mark.parametrize("signal", get_args(Signal))
def test_each_pair_of_state_and_signal(state: MemberState, signal: Signal) -> None:
    member = Member(0, state, version=5, zero_steps=1)
    if signal in TRANSITIONS[state]:
        assert advance(member, signal, 5).state == TRANSITIONS[state][signal]
    else:
        with pytest.raises(IllegalMove, match=f"is {state}: {signal}"):
            advance(member, signal, 5)


def test_all_that_one_replica_can_ever_do() -> None:
    """Breadth first over every word of signals, versions 5 and 6: what holds in each state that can be reached."""
    start = Member(0)
    seen, queue = {start}, deque([start])
    while queue:
        member = queue.popleft()
        for signal in TRANSITIONS[member.state]:
            for version in (5, 6):
                try:
                    after = advance(member, signal, version)
                except IllegalMove:
                    continue
                if member.state != "active" and after.state == "active":
                    assert after.zero_steps >= 1 and after.version == version and member.state == "activating"
                if after.state in ("serving", "requested", "failed", "cancelled"):
                    assert (after.version, after.zero_steps) == (-1, 0), "a rolled-back replica keeps nothing"
                if after.attempt <= 2 and after.zero_steps <= 2 and after not in seen:
                    seen.add(after)
                    queue.append(after)
    assert {member.state for member in seen} == set(get_args(MemberState))


def test_a_join_goes_the_whole_way() -> None:
    pool = Membership()
    states = [(pool := pool.apply(0, signal, 5)).member(0).state for signal in JOIN]
    assert states == ["requested", "fetching", "placeholder", "placeholder", "activating", "active"]
    assert pool.active() == (0,)


def test_fault_21_no_activation_without_a_real_zero_gradient_phase() -> None:
    with pytest.raises(IllegalMove, match="sent no zero gradient"):
        joined("fetched").apply(0, "align", 5)


def test_fault_21_a_stale_state_does_not_activate_and_may_be_fetched_again() -> None:
    pool = joined("zero_step")
    with pytest.raises(IllegalMove, match="holds version 5, the core 7"):
        pool.apply(0, "align", 7)
    assert pool.apply(0, "fetch").apply(0, "fetched", 7).member(0) == Member(0, "placeholder", 7, 0, 1)


def test_the_epoch_rises_when_the_senders_change_and_only_then() -> None:
    pool, epochs = Membership(), []
    for signal in (*JOIN, "leave", "left"):
        pool = pool.apply(0, signal, 5)  # type: ignore[arg-type]
        epochs.append(pool.epoch)
    assert epochs == [0, 0, 1, 1, 1, 1, 2, 2]


def test_a_failed_replica_is_waited_for_no_longer() -> None:
    pool = joined().apply(1, "request").apply(0, "fail")
    assert (pool.senders(), pool.active(), pool.epoch) == ((), (), 2)
    assert pool.member(1).state == "requested"


@pytest.mark.parametrize(
    ("message", "accepted"),
    [
        (Message(0, 9, 5, 1), True),
        (Message(0, 8, 5, 1), False),
        (Message(0, 9, 4, 1), False),
        (Message(0, 9, 5, 0), False),
        (Message(1, 9, 5, 1), False),
    ],
)
def test_fault_21_gradients_of_another_step_version_or_membership_are_dropped(message: Message, accepted: bool) -> None:
    assert joined().accepts(message, step=9, version=5) is accepted


def test_only_senders_count_as_active() -> None:
    assert "active" in SENDING and "leaving" not in SENDING
