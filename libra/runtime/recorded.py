"""Trajectories out of an event log: what a run of either backend played, turn by turn, ready to be played again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from libra.core.commands import Command
from libra.core.events import Event, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.records import ToolReturn, Trajectory, Turn


@dataclass
class _Open:
    start: TrajectoryStart
    context_tok: int
    turns: list[Turn] = field(default_factory=list)

    def returned(self, event: ToolReturned) -> None:
        """Live, a turn's end may be told after the next turn was asked for: its tokens then count as payload, and are
        taken from the next one's. Contexts are right, so what does not fit between two of them is cut."""
        payload_tok = min(max(0, event.payload_tok), event.context_tok - self.context_tok)
        tool = ToolReturn(event.tool, payload_tok, event.status, event.latency_s)
        self.turns.append(Turn(event.context_tok - payload_tok - self.context_tok, tool))
        self.context_tok = event.context_tok

    def ended(self, event: TrajectoryEnd) -> Trajectory:
        start, turns = self.start, (*self.turns, Turn(event.total_tok - self.context_tok))
        return Trajectory(
            start.prompt_id, start.group, start.sample, start.prompt_tok, turns, event.reward, event.status
        )  # fmt: skip


def trajectories(log: Iterable[tuple[Event, tuple[Command, ...]]]) -> list[Trajectory]:
    """Those that ended, by group and sample; `log` as `replay.decisions` reads it."""
    live: dict[int, _Open] = {}
    found: list[Trajectory] = []
    for event, _ in log:
        if isinstance(event, TrajectoryStart):
            live[event.trajectory] = _Open(event, event.prompt_tok)
        elif isinstance(event, ToolReturned):
            live[event.trajectory].returned(event)
        elif isinstance(event, TrajectoryEnd):
            found.append(live.pop(event.trajectory).ended(event))
    return sorted(found, key=lambda row: (row.group, row.sample))


def whole_groups(rows: Iterable[Trajectory], group_size: int) -> list[tuple[Trajectory, ...]]:
    """Groups of which every sample ended, in order."""
    groups: dict[int, list[Trajectory]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [tuple(members) for _, members in sorted(groups.items()) if len(members) == group_size]


def spread(groups: Sequence[tuple[Trajectory, ...]], number: int) -> list[tuple[Trajectory, ...]]:
    """`number` groups, the middles of as many equal stretches of the run (lengths drift); all if there are no more."""
    total = len(groups)
    return [groups[(2 * k + 1) * total // (2 * number)] for k in range(number)] if number < total else list(groups)
