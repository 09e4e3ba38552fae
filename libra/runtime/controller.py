"""One screen: record the event, ask the policy, record the commands, hand them to the backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from libra.core.commands import Command
from libra.core.errors import PolicyError
from libra.core.events import Event, PlannerTick, RunStart, ToolReturned, TrajectoryStart
from libra.core.policy import Policy
from libra.results.schemas import StepRow, TrajectoryRow, VersionRow


class Recorder(Protocol):
    """Keeps what happened. `decide_s` is the measured time of the decision; it never reaches the policy."""

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None: ...

    def trajectory(self, row: TrajectoryRow, versions: Sequence[VersionRow] = ()) -> None: ...

    def step(self, row: StepRow) -> None: ...


class Controller:
    """Feeds a policy. Events that arise while commands are carried out wait their turn (no recursion)."""

    def __init__(self, policy: Policy, recorder: Recorder, clock: Callable[[], float]) -> None:
        self.policy, self.recorder, self.clock = policy, recorder, clock
        self._queue: deque[Event] = deque()
        self._busy = False

    def emit(self, event: Event, apply: Callable[[Command], None]) -> None:
        """Deliver an event and carry out what the policy answers, in order, acknowledgements included."""
        queue = self._queue
        queue.append(event)
        if self._busy:
            return
        self._busy = True
        clock, decide, record = self.clock, self.policy.decide, self.recorder.decision
        try:
            while queue:
                current = queue.popleft()
                started = clock()
                commands = decide(current)
                if commands or type(commands) is not tuple:
                    _check(current, commands)
                record(current, commands, clock() - started)
                for command in commands:
                    apply(command)
        finally:
            self._busy = False


_ANSWERED = (RunStart, TrajectoryStart, ToolReturned, PlannerTick)
"""Events that may be answered; the others only inform. An acknowledgement that is answered would never end."""


def _check(event: Event, commands: object) -> None:
    if not isinstance(commands, (list, tuple)):
        name = type(event).__name__
        raise PolicyError(f"{name} at {event.t_s:.3f} s was answered with {commands!r}; a sequence of commands is due")
    if commands and not isinstance(event, _ANSWERED):
        name = type(event).__name__
        raise PolicyError(f"{name} at {event.t_s:.3f} s was answered with {commands[0]!r}; it only informs")
