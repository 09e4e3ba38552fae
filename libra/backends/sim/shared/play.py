"""Plays recorded trajectories on a table: the simulator as calibration and prediction use it, without a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from libra.backends.sim.engine import make_simulator
from libra.backends.sim.options import SimOptions
from libra.backends.sim.shared.table import Table
from libra.core.commands import Command
from libra.core.events import Event, PipelineSpec
from libra.core.hardware import Cluster, Model
from libra.core.policy import Policy
from libra.core.records import Trajectory
from libra.core.rng import stream
from libra.results.schemas import StepRow, TrajectoryRow, VersionRow
from libra.runtime.controller import Controller
from libra.workloads.base import Parameter

Group = tuple[Trajectory, ...]


@dataclass(frozen=True)
class Recorded:
    """Groups in the order of their recording, from the start again when there are too few. A `Workload`."""

    groups: Sequence[Group]
    prompts: int
    num_steps: int
    max_context_tok: int
    shown: tuple[Trajectory, ...] = ()
    """What planners see as the profile."""
    name: str = "recorded"
    warnings: tuple[str, ...] = ()

    @property
    def group_size(self) -> int:
        return len(self.groups[0])

    @property
    def batch(self) -> int:
        return self.prompts * self.group_size

    def group(self, index: int) -> Group:
        rows = self.groups[index % len(self.groups)]
        return tuple(msgspec.structs.replace(row, group=index, sample=k) for k, row in enumerate(rows))

    def profile(self, num_groups: int) -> tuple[Trajectory, ...]:
        return self.shown

    def parameters(self) -> Sequence[Parameter]:
        return ()


def drawn(groups: Sequence[Group], prompts: int, num_batches: int, seed: int) -> list[Group]:
    """Another run of the same tasks by the same policy: recorded batches of `prompts` groups, with replacement.

    A batch stays whole, since its tools were slow or fast together.
    """
    batches = [groups[first : first + prompts] for first in range(0, len(groups) - prompts + 1, prompts)]
    chosen = stream("fidelity", seed).integers(0, len(batches), size=num_batches)
    return [group for index in np.asarray(chosen).tolist() for group in batches[index]]


@dataclass(frozen=True)
class Scene:
    """A run but for its trajectories' times: `policy` makes a fresh one."""

    cluster: Cluster
    model: Model
    pipeline: PipelineSpec
    policy: Callable[[], Policy]


@dataclass
class Played:
    """Rows of a run, as the store would hold them; a recorder of `runtime.controller`."""

    steps: list[StepRow] = field(default_factory=list)
    trajectories: list[TrajectoryRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def decision(self, event: Event, commands: Sequence[Command], decide_s: float) -> None:
        self.events.append(event)

    def trajectory(self, row: TrajectoryRow, versions: Sequence[VersionRow] = ()) -> None:
        self.trajectories.append(row)

    def step(self, row: StepRow) -> None:
        self.steps.append(row)


def play(scene: Scene, table: Table, workload: Recorded) -> Played:
    """One simulated run, and one more step than asked for: verl rolls a last batch out that is never trained."""
    longer = Recorded(
        workload.groups, workload.prompts, workload.num_steps + 1, workload.max_context_tok, workload.shown
    )
    options = SimOptions(table=msgspec.json.encode(table).decode())
    simulator = make_simulator(scene.cluster, scene.model, longer, scene.pipeline, options=options)
    played = Played()
    simulator.run(Controller(scene.policy(), played, clock=lambda: 0.0))
    del played.steps[workload.num_steps :]
    return played
