"""How rollout and training overlap: colocated, one-step-off barrier, and asynchronous with bounded staleness.

A pipeline only orders the stages. `Stages` (the engine) carries them out: it launches groups, trains a batch,
refreshes weights and closes a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from libra.backends.sim.rollout import Live
from libra.core.events import PipelineSpec

Done = Callable[[], None]


class Stages(Protocol):
    """What a pipeline may ask of the engine. `done` is called when the stage is over."""

    num_steps: int
    groups_per_step: int
    group_size: int
    version: int

    def launch(self, first_group: int, num_groups: int) -> None: ...

    def train(self, batch: Sequence[Live], done: Done) -> None: ...

    def sync_weights(self, done: Done) -> None:
        """Refresh the engines' weights; `version` has risen by one when `done` is called."""

    def switch_sides(self, done: Done) -> None:
        """Colocated only: the GPUs change between rollout and training."""

    def close_step(self, batch: Sequence[Live]) -> None:
        """Record the step of `batch`, report it, and carry out what the policy decides at this safe point."""


class Colocated:
    """Rollout, then training, on the same GPUs: on-policy, nothing overlaps."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._batch: list[Live] = []
        self._next = 0

    def start(self) -> None:
        stages = self._stages
        stages.launch(self._next * stages.groups_per_step, stages.groups_per_step)
        self._next += 1

    def on_end(self, live: Live) -> None:
        stages = self._stages
        self._batch.append(live)
        if len(self._batch) == stages.groups_per_step * stages.group_size:
            stages.switch_sides(lambda: stages.train(self._batch, lambda: stages.switch_sides(self._trained)))

    def _trained(self) -> None:
        self._stages.sync_weights(self._synced)

    def _synced(self) -> None:
        batch, self._batch = self._batch, []
        self._stages.close_step(batch)
        if self._next < self._stages.num_steps:
            self.start()


class Barrier:
    """One-step-off: batch k+1 is rolled out while batch k trains; both meet at the weight sync."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._rolled: list[Live] = []
        self._batch: list[Live] = []
        self._next = 0
        self._rolling = self._training = False

    def start(self) -> None:
        stages = self._stages
        if self._next < stages.num_steps:
            self._rolling = True
            self._next += 1
            stages.launch((self._next - 1) * stages.groups_per_step, stages.groups_per_step)

    def on_end(self, live: Live) -> None:
        self._rolled.append(live)
        if len(self._rolled) == self._stages.groups_per_step * self._stages.group_size:
            self._rolling = False
            self._meet()

    def _trained(self) -> None:
        self._training = False
        self._meet()

    def _meet(self) -> None:
        if self._rolling or self._training:
            return
        if self._batch:
            self._stages.sync_weights(self._synced)
        else:
            self._advance()

    def _synced(self) -> None:
        self._stages.close_step(self._batch)
        self._advance()

    def _advance(self) -> None:
        self._batch, self._rolled = self._rolled, []
        if self._batch:
            self._training = True
            self._stages.train(self._batch, self._trained)
            self.start()


class Asynchronous:
    """Continuous rollout. Group g starts only when g < (eta + version + 1) * groups_per_step (AReaL's gate).

    The trainer takes the oldest finished groups, and waits when that would leave more old ones than later steps can
    take before they become older than eta versions: the bound holds and nothing is thrown away.
    """

    def __init__(self, stages: Stages, spec: PipelineSpec) -> None:
        self._stages, self._staleness = stages, spec.staleness
        self._open: dict[int, list[Live]] = {}
        self._ready: list[list[Live]] = []
        self._born: dict[int, int] = {}
        """Group in flight -> version when it was launched, a lower bound of its trajectories' start versions."""
        self._launched = 0
        self._trained_steps = 0
        self._busy = False
        self._batch: list[Live] = []

    def start(self) -> None:
        self._launch()

    def _launch(self) -> None:
        stages = self._stages
        limit = min(self._staleness + stages.version + 1, stages.num_steps) * stages.groups_per_step
        first, self._launched = self._launched, max(self._launched, limit)
        for group in range(first, self._launched):
            self._born[group] = stages.version
        if self._launched > first:
            stages.launch(first, self._launched - first)

    def on_end(self, live: Live) -> None:
        group = live.record.group
        members = self._open.setdefault(group, [])
        members.append(live)
        if len(members) == self._stages.group_size:
            self._ready.append(self._open.pop(group))
            self._try_train()

    def _try_train(self) -> None:
        stages = self._stages
        if self._busy or len(self._ready) < stages.groups_per_step:
            return
        self._ready.sort(key=lambda members: self._born[members[0].record.group])
        chosen = self._ready[: stages.groups_per_step]
        taken = {members[0].record.group for members in chosen}
        if not self._leaves_time_for({group: born for group, born in self._born.items() if group not in taken}):
            return
        self._ready = self._ready[stages.groups_per_step :]
        self._batch = [live for members in chosen for live in members]
        for group in taken:
            del self._born[group]
        self._busy = True
        stages.train(self._batch, lambda: stages.sync_weights(self._synced))

    def _leaves_time_for(self, left: dict[int, int]) -> bool:
        """Whether later steps, one batch each, can train all groups `left` (group -> birth version) in time."""
        stages = self._stages
        due = sorted(born + self._staleness - stages.version for born in left.values())
        return all(count <= steps * stages.groups_per_step for count, steps in enumerate(due, start=1))

    def _synced(self) -> None:
        batch, self._batch = self._batch, []
        self._busy = False
        self._stages.close_step(batch)
        self._launch()
        self._try_train()


Pipeline = Colocated | Barrier | Asynchronous


def make_pipeline(spec: PipelineSpec, stages: Stages) -> Pipeline:
    """The pipeline of a kind."""
    if spec.kind == "colocated":
        return Colocated(stages)
    return Barrier(stages) if spec.kind == "barrier" else Asynchronous(stages, spec)
