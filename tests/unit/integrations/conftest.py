"""A session on a clock that the test moves, with a recorder that keeps everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from baselines.routers.least_loaded import LeastLoaded
from libra.core.commands import Command
from libra.core.events import Event, PipelineSpec, RunStart
from libra.core.policy import ComposedPolicy
from libra.core.records import ToolReturn, VersionSpan
from libra.integrations.given import GivenLayout
from libra.integrations.session import Session
from libra.integrations.turns import Ended, Turn, TurnDone
from libra.results.schemas import StepRow, TrajectoryRow, VersionRow
from libra.runtime.controller import Controller

RUN = RunStart(0.0, "cpu2", "tiny", PipelineSpec("async"), 2, 2, 4, 1024)


@dataclass
class Kept:
    """A recorder."""

    events: list[Event] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    trajectories: list[TrajectoryRow] = field(default_factory=list)
    versions: list[VersionRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self.events.append(event)
        self.commands += commands

    def trajectory(self, row: TrajectoryRow, versions: Sequence[VersionRow] = ()) -> None:
        self.trajectories.append(row)
        self.versions += versions

    def step(self, row: StepRow) -> None:
        self.steps.append(row)


@dataclass
class Scene:
    """`session` of engines with ids 0, 1, ...; `now_s` is its clock."""

    sizes: tuple[int, ...] = (1, 2)
    now_s: float = 100.0
    kept: Kept = field(default_factory=Kept)

    def __post_init__(self) -> None:
        policy = ComposedPolicy("given", GivenLayout(self.sizes), LeastLoaded())
        self.session = Session(Controller(policy, self.kept, clock=lambda: 0.0), RUN, clock=lambda: self.now_s)

    def begin(self) -> None:
        self.session.start()
        self.session.attach(tuple(range(len(self.sizes))))

    def turn(self, key: str, context_tok: int, tool: ToolReturn | None = None, *, resumed: bool = False) -> int | None:
        return self.session.place(Turn(key, f"task-{key}", "g", 0, 0, context_tok, tool, resumed))

    def done(self, key: str, *tokens: tuple[int, int]) -> None:
        """A turn's (version, tokens)."""
        self.session.turn_done(TurnDone(key, tuple(VersionSpan(*each) for each in tokens)))

    def whole(self, key: str, version: int = 0, generated_tok: int = 5) -> None:
        """A trajectory of one turn."""
        self.turn(key, 10)
        self.now_s += 1.0
        self.done(key, (version, generated_tok))
        self.session.ended(Ended(key, "completed", 1.0))


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    found.begin()
    return found
