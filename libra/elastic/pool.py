"""Membership of hybrid replicas in training: a pure state machine, one per replica (paper, elastic hybrid pool).

A replica that joins fetches a snapshot while the core keeps training, then sends zero gradients as a placeholder, so
that its channels are used before they matter; once its state is the core's, it becomes active at a step edge and sends
real ones. It may be cancelled until then, may fail at any time, and leaves as a whole. Epochs name the membership that
a message was meant for; a message of another one is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from libra.core.errors import LibraError

MemberState = Literal[
    "serving", "requested", "fetching", "placeholder", "activating", "active", "leaving", "failed", "cancelled"
]
Signal = Literal["request", "fetch", "fetched", "zero_step", "align", "activate", "leave", "left", "cancel", "fail"]

TRANSITIONS: Mapping[MemberState, Mapping[Signal, MemberState]] = {
    "serving": {"request": "requested"},
    "requested": {"fetch": "fetching", "cancel": "cancelled", "fail": "failed"},
    "fetching": {"fetched": "placeholder", "cancel": "cancelled", "fail": "failed"},
    "placeholder": {
        "zero_step": "placeholder",
        "align": "activating",
        "fetch": "fetching",
        "cancel": "cancelled",
        "fail": "failed",
    },
    "activating": {"activate": "active", "cancel": "cancelled", "fail": "failed"},
    "active": {"leave": "leaving", "fail": "failed"},
    "leaving": {"left": "serving", "fail": "failed"},
    "failed": {"request": "requested"},
    "cancelled": {"request": "requested"},
}
"""`serving` rolls out. `fetch` from `placeholder` starts over: the snapshot is too old to catch up."""

SENDING: frozenset[MemberState] = frozenset({"placeholder", "activating", "active"})
"""States whose gradient, zero or real, the core waits for in every step."""


class IllegalMove(LibraError):
    """A signal that the state does not allow."""


class Member(msgspec.Struct, frozen=True):
    """One hybrid replica. `version` is the policy version of its weights and optimizer state, -1 unknown;
    `zero_steps` counts the steps of this attempt to which it sent zeros; `attempt` counts requests."""

    hybrid: int
    state: MemberState = "serving"
    version: int = -1
    zero_steps: int = 0
    attempt: int = 0


class Message(msgspec.Struct, frozen=True):
    """Header of a gradient that a replica sends."""

    hybrid: int
    step: int
    version: int
    epoch: int


def advance(member: Member, signal: Signal, version: int = -1) -> Member:
    """The member after `signal`. `version` is the snapshot's (`fetched`) or the core's (all other signals).

    Raises `IllegalMove` for a signal that the state does not allow, for `align` before one zero gradient was sent, and
    for `align` or `activate` on a state that is not the core's.
    """
    if signal not in TRANSITIONS[member.state]:
        allowed = ", ".join(TRANSITIONS[member.state])
        raise IllegalMove(f"hybrid replica {member.hybrid} is {member.state}: {signal} is not one of {allowed}")
    if signal == "align" and not member.zero_steps:
        raise IllegalMove(f"hybrid replica {member.hybrid} has sent no zero gradient yet")
    if signal in ("align", "activate") and version != member.version:
        raise IllegalMove(f"hybrid replica {member.hybrid} holds version {member.version}, the core {version}")
    state = TRANSITIONS[member.state][signal]
    if signal == "request":
        return Member(member.hybrid, state, attempt=member.attempt + 1)
    if signal == "zero_step":
        return msgspec.structs.replace(member, version=version, zero_steps=member.zero_steps + 1)
    if signal == "fetched":
        return msgspec.structs.replace(member, state=state, version=version, zero_steps=0)
    if state in ("failed", "cancelled", "serving"):
        return Member(member.hybrid, state, attempt=member.attempt)
    return msgspec.structs.replace(member, state=state)


class Membership(msgspec.Struct, frozen=True):
    """All hybrid replicas. `epoch` rises whenever the set of senders changes, so that nobody waits for one who left."""

    members: tuple[Member, ...] = ()
    epoch: int = 0

    def member(self, hybrid: int) -> Member:
        """A replica never heard of is serving."""
        return next((m for m in self.members if m.hybrid == hybrid), Member(hybrid))

    def apply(self, hybrid: int, signal: Signal, version: int = -1) -> Membership:
        """Advance one replica. Raises `IllegalMove`, leaving this value as it is."""
        member = advance(self.member(hybrid), signal, version)
        others = tuple(m for m in self.members if m.hybrid != hybrid)
        members = tuple(sorted((*others, member), key=lambda m: m.hybrid))
        after = Membership(members, self.epoch)
        changed = after.senders() != self.senders()
        return msgspec.structs.replace(after, epoch=self.epoch + changed)

    def senders(self) -> tuple[int, ...]:
        """Replicas whose gradient, zero or real, the core waits for."""
        return tuple(m.hybrid for m in self.members if m.state in SENDING)

    def active(self) -> tuple[int, ...]:
        """Replicas whose samples count."""
        return tuple(m.hybrid for m in self.members if m.state == "active")

    def accepts(self, message: Message, step: int, version: int) -> bool:
        """Whether a gradient belongs to the core's present step, version and membership; else it is dropped."""
        return (message.step, message.version, message.epoch) == (step, version, self.epoch) and (
            message.hybrid in self.senders()
        )
