"""Feeds a recorded event log to a fresh policy and compares its answers: decisions are values, so they must agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.events import Event
from libra.core.policy import Policy
from libra.runtime.event_log import LOG_NAME, read_log


@dataclass(frozen=True)
class Difference:
    """First event (numbered from 0) that was answered otherwise. `expected` is what the log holds."""

    index: int
    event: Event
    expected: tuple[Command, ...]
    got: tuple[Command, ...]

    def __str__(self) -> str:
        lines = [f"  event    {_show(self.event)}"]
        lines += [f"  expected {_show(command)}" for command in self.expected or ("no command",)]
        lines += [f"  got      {_show(command)}" for command in self.got or ("no command",)]
        return "\n".join(lines)


@dataclass(frozen=True)
class ReplayReport:
    """`num_events` were compared and `num_commands` agree; `difference` is None when all do."""

    num_events: int
    num_commands: int
    difference: Difference | None = None

    @property
    def same(self) -> bool:
        return self.difference is None

    def text(self) -> str:
        """One line, and the first difference if there is one."""
        if self.difference is None:
            return f"same: {self.num_events} events gave the same {self.num_commands} commands"
        head = f"different at event {self.difference.index}, after {self.num_commands} equal commands"
        return f"{head}\n{self.difference}"

    def to_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found = None if self.difference is None else msgspec.to_builtins(asdict(self.difference))
        return {
            "same": self.same,
            "num_events": self.num_events,
            "num_commands": self.num_commands,
            "difference": found,
        }


def replay(cell_dir: Path, build_policy: Callable[[], Policy]) -> ReplayReport:
    """Replay a cell (or the log of a cut-off attempt) up to the first difference.

    `build_policy` makes the policy as the run had it. Raises `StoreError` for a log that cannot be read.
    """
    policy = build_policy()
    num_events = num_commands = 0
    for event, expected in decisions(cell_dir / LOG_NAME):
        got = tuple(policy.decide(event))
        num_events += 1
        if got != expected:
            return ReplayReport(num_events, num_commands, Difference(num_events - 1, event, expected, got))
        num_commands += len(expected)
    return ReplayReport(num_events, num_commands)


def decisions(log: Path) -> Iterator[tuple[Event, tuple[Command, ...]]]:
    """(event, the commands that answered it) of a log, in order."""
    event: Event | None = None
    answer: list[Command] = []
    for entry in read_log(log):
        if isinstance(entry, Place | ApplyPlan | Switch):
            answer.append(entry)
            continue
        if event is not None:
            yield event, tuple(answer)
        event, answer = entry, []
    if event is not None:
        yield event, tuple(answer)


def _show(value: Event | Command | str, limit: int = 400) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= limit else text[:limit] + " ..."
