"""Policy protocols and their composition: planner, gate, router and elastic pool make one system.

A policy is a pure function of the events it has seen. `ComposedPolicy` is the only place that knows when each part is
asked: the planner at the run's start and at planner ticks, the gate before anything moves, the router for every
trajectory event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import msgspec

from libra.core.commands import ApplyPlan, Command, Switch
from libra.core.errors import unknown_name
from libra.core.events import (
    AllocationChanged,
    Event,
    Placed,
    PlannerTick,
    RunStart,
    StepEnd,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.plan import Allocation, Move, Plan
from libra.core.records import Trajectory

WINDOW_STEPS = 8
"""Steps of history in the statistics: long enough for a tail of 32 trajectories, short against drift (assumed)."""


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


class Statistics(msgspec.Struct, frozen=True):
    """What the planner may look at: the run's fixed facts, a window of finished trajectories, a window of steps."""

    run: RunStart
    finished: tuple[Finished, ...]
    steps: tuple[StepEnd, ...] = ()


@runtime_checkable
class Planner(Protocol):
    """Chooses a layout; the current allocation is an argument, so that moving has a price."""

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan: ...


@runtime_checkable
class Gate(Protocol):
    """Decides whether a candidate plan is worth its transition."""

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool: ...


@runtime_checkable
class Router(Protocol):
    """Places trajectories. Sees every event; answers `TrajectoryStart` and `ToolReturned` with exactly one `Place`."""

    def on(self, event: Event) -> Sequence[Command]: ...


@runtime_checkable
class Elastic(Protocol):
    """Turns a plan into moves of hybrid replicas; empty when the plan cannot be reached by moves alone. Idempotent."""

    def reconcile(self, plan: Plan, allocation: Allocation) -> Sequence[Move]: ...


@runtime_checkable
class Policy(Protocol):
    """A whole system under test."""

    def decide(self, event: Event) -> Sequence[Command]: ...


class NeverReplan:
    """Gate of every static system."""

    def accepts(self, candidate: Plan, statistics: Statistics, allocation: Allocation) -> bool:
        return False


class NoElastic:
    """No hybrid pool: every change of plan is a repartition."""

    def reconcile(self, plan: Plan, allocation: Allocation) -> Sequence[Move]:
        return ()


@dataclass
class _Memory:
    """Telemetry window of a composed policy."""

    run: RunStart | None = None
    prompt_tok: dict[int, int] = field(default_factory=dict)
    finished: deque[Finished] = field(default_factory=deque)
    steps: deque[StepEnd] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    allocation: Allocation | None = None


_ROUTED_ONLY = frozenset({ToolReturned, Placed})
"""Events, nine tenths of all, that nobody but the router hears: neither planned from nor remembered."""


@dataclass(frozen=True)
class ComposedPolicy:
    """Planner + gate + router + elastic pool. `replan_every` counts steps between planner runs; 0 means never."""

    name: str
    planner: Planner
    router: Router
    gate: Gate = field(default_factory=NeverReplan)
    elastic: Elastic = field(default_factory=NoElastic)
    replan_every: int = 0
    _memory: _Memory = field(default_factory=_Memory, repr=False)

    def with_(self, **parts: Any) -> ComposedPolicy:
        """The same system with other parts, e.g. `.with_(router=LeastLoaded())`, with a fresh memory."""
        return replace(self, **parts, _memory=_Memory())

    def without(self, part: str) -> ComposedPolicy:
        """The same system less one part: `gate` (never replan) or `elastic` (every change is a repartition)."""
        defaults: dict[str, Any] = {"gate": NeverReplan(), "elastic": NoElastic()}
        if part not in defaults:
            mend = "replace it: .with_(planner=..., router=...)"
            raise unknown_name("part", part, defaults, where="ComposedPolicy.without", mend=mend)
        return self.with_(**{part: defaults[part]})

    def decide(self, event: Event) -> Sequence[Command]:
        if type(event) in _ROUTED_ONLY:
            return self.router.on(event)
        self._remember(event)
        routed = self.router.on(event)
        if isinstance(event, RunStart):
            return (*self._first_plan(event), *routed)
        if isinstance(event, PlannerTick):
            return (*self._replan(event), *routed)
        return routed

    def _remember(self, event: Event) -> None:
        memory = self._memory
        if isinstance(event, TrajectoryStart):
            memory.prompt_tok[event.trajectory] = event.prompt_tok
        elif isinstance(event, TrajectoryEnd):
            prompt_tok = memory.prompt_tok.pop(event.trajectory, 0)
            memory.finished.append(
                Finished(
                    prompt_tok,
                    event.generated_tok,
                    event.total_tok - event.generated_tok - prompt_tok,
                    event.num_turns,
                    event.tool_s,
                    event.status != "completed",
                )
            )
            assert memory.run is not None, "RunStart comes first"
            while len(memory.finished) > WINDOW_STEPS * memory.run.batch:
                memory.finished.popleft()
        elif isinstance(event, StepEnd):
            memory.steps.append(event)
        elif isinstance(event, AllocationChanged):
            memory.allocation = event.allocation

    def statistics(self) -> Statistics:
        """The current window. Before the first trajectory ends it is the profiling run's."""
        memory = self._memory
        assert memory.run is not None, "RunStart comes first"
        finished = tuple(memory.finished) or tuple(map(Finished.of, memory.run.profile))
        return Statistics(memory.run, finished, tuple(memory.steps))

    def _first_plan(self, event: RunStart) -> Sequence[Command]:
        memory = self._memory
        memory.run = event
        return (ApplyPlan(self.planner.plan(self.statistics(), None)),)

    def _replan(self, event: PlannerTick) -> Sequence[Command]:
        if self.replan_every <= 0 or (event.step + 1) % self.replan_every:
            return ()
        statistics = self.statistics()
        candidate = self.planner.plan(statistics, event.allocation)
        if not self.gate.accepts(candidate, statistics, event.allocation):
            return ()
        moves = self.elastic.reconcile(candidate, event.allocation)
        return (Switch(tuple(moves)),) if moves else (ApplyPlan(candidate),)
