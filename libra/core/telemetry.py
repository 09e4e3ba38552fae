"""The telemetry window of a composed policy: what has ended lately, cut where the workload is found to have changed.

A window that spans a change describes a workload that never was; what decides where it changed is a `ChangeDetector`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from libra.core.events import AllocationChanged, Event, RunStart, StepEnd, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation
from libra.core.records import Trajectory

WINDOW_STEPS = 8
"""Steps of history in the statistics: long enough for a tail of 32 trajectories, short against drift (assumed)."""
MAX_TRANSITIONS = 8
"""Latest transitions that are remembered: as many as a moving average of a third a piece can tell (assumed)."""


class Finished(msgspec.Struct, frozen=True):
    """Lengths of a finished trajectory, as telemetry reports them. `is_censored` marks lower bounds."""

    prompt_tok: int
    generated_tok: int
    observed_tok: int
    num_turns: int
    tool_s: float
    is_censored: bool = False

    @classmethod
    def of(cls, row: Trajectory) -> Finished:
        return cls(row.prompt_tok, row.generated_tok, row.observed_tok, len(row.turns), row.tool_s, row.is_censored)

    @property
    def total_tok(self) -> int:
        return self.prompt_tok + self.generated_tok + self.observed_tok


class Started(msgspec.Struct, frozen=True):
    """A transition that was carried out: seconds from its acknowledgement until its first engine came up."""

    cause: Literal["plan", "switch"]
    up_s: float


class Statistics(msgspec.Struct, frozen=True):
    """What the planner may look at: the run's fixed facts, a window of finished trajectories, a window of steps.

    `changes` are the first steps of the regimes that were found so far, without the run's first; `started` the latest
    transitions, oldest first.
    """

    run: RunStart
    finished: tuple[Finished, ...]
    steps: tuple[StepEnd, ...] = ()
    changes: tuple[int, ...] = ()
    started: tuple[Started, ...] = ()


class ChangeDetector(Protocol):
    """Finds where the workload changed. One serves one run."""

    def observe(self, step: StepEnd, finished: Sequence[Finished], *, disturbed: bool) -> int | None:
        """Steps, counted back from this one, that belong to a new regime; None while nothing has changed.

        `finished` ended since the last step end; `disturbed` says that engines came or went in that time, so that
        stage times compare with nothing.
        """


class NoDetector:
    """Never finds a change: the window is what the last steps brought."""

    def __init__(self, run: RunStart) -> None:
        pass

    def observe(self, step: StepEnd, finished: Sequence[Finished], *, disturbed: bool) -> int | None:
        return None


@dataclass
class Telemetry:
    """Remembers what a run reports. `run` and `detector` come with the run's start."""

    run: RunStart | None = None
    detector: ChangeDetector | None = None
    prompt_tok: dict[int, int] = field(default_factory=dict)
    finished: deque[Finished] = field(default_factory=deque)
    steps: deque[StepEnd] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    changes: list[int] = field(default_factory=list)
    started: deque[Started] = field(default_factory=lambda: deque(maxlen=MAX_TRANSITIONS))
    allocation: Allocation | None = None
    has_changed: bool = False
    """Whether the last step end brought a change to light."""
    _ended: deque[int] = field(default_factory=lambda: deque([0], maxlen=WINDOW_STEPS + 1))
    """Trajectories that ended in each step of the window; the last one counts those since the last step end."""
    _disturbed: bool = False
    _pending: AllocationChanged | None = None
    """A change of plan none of whose engines has come up yet."""

    def remember(self, event: Event) -> None:
        if isinstance(event, TrajectoryStart):
            self.prompt_tok[event.trajectory] = event.prompt_tok
        elif isinstance(event, TrajectoryEnd):
            self._trajectory(event)
        elif isinstance(event, StepEnd):
            self._step(event)
        elif isinstance(event, AllocationChanged):
            self._allocation(event)

    def statistics(self) -> Statistics:
        """The current window. Before the first trajectory ends it is the profiling run's."""
        assert self.run is not None, "RunStart comes first"
        finished = tuple(self.finished) or tuple(map(Finished.of, self.run.profile))
        return Statistics(self.run, finished, tuple(self.steps), tuple(self.changes), tuple(self.started))

    def _trajectory(self, event: TrajectoryEnd) -> None:
        assert self.run is not None, "RunStart comes first"
        prompt_tok = self.prompt_tok.pop(event.trajectory, 0)
        observed_tok = event.total_tok - event.generated_tok - prompt_tok
        is_censored = event.status != "completed"
        self.finished.append(
            Finished(prompt_tok, event.generated_tok, observed_tok, event.num_turns, event.tool_s, is_censored)
        )
        self._ended[-1] += 1
        while len(self.finished) > WINDOW_STEPS * self.run.batch:
            self.finished.popleft()

    def _step(self, event: StepEnd) -> None:
        self.steps.append(event)
        newest = list(self.finished)[len(self.finished) - min(self._ended[-1], len(self.finished)) :]
        self._ended.append(0)
        found = self.detector.observe(event, newest, disturbed=self._disturbed) if self.detector else None
        self.has_changed, self._disturbed = found is not None, False
        if found is not None:
            self.changes.append(event.step - found + 1)
            self._cut(found)

    def _cut(self, num_steps: int) -> None:
        """Forget what ended before the newest `num_steps` steps; what began a new regime longer ago needs no cut."""
        if num_steps >= len(self.steps):
            return
        keep = sum(list(self._ended)[-num_steps - 1 :])
        while len(self.finished) > max(1, keep):
            self.finished.popleft()
        while len(self.steps) > num_steps:
            self.steps.popleft()

    def _allocation(self, event: AllocationChanged) -> None:
        self.allocation = event.allocation
        if event.cause == "rejected":
            return
        self._disturbed = True
        if event.cause in ("plan", "switch") and self.steps:
            self._pending = event
        elif event.cause == "up" and self._pending is not None:
            cause: Literal["plan", "switch"] = "plan" if self._pending.cause == "plan" else "switch"
            self.started.append(Started(cause, event.t_s - self._pending.t_s))
            self._pending = None
