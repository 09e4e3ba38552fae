"""Policy protocols and their composition: planner, gate, router and elastic pool make one system.

A policy is a pure function of the events it has seen. `ComposedPolicy` is the only place that knows when each part is
asked: the planner at the run's start and at planner ticks, the gate before anything moves, the router for every
trajectory event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from libra.core.commands import ApplyPlan, Command, Switch
from libra.core.errors import unknown_name
from libra.core.events import Event, Placed, PlannerTick, RunStart, ToolReturned
from libra.core.plan import Allocation, Move, Plan
from libra.core.telemetry import WINDOW_STEPS as WINDOW_STEPS
from libra.core.telemetry import ChangeDetector, NoDetector, Telemetry
from libra.core.telemetry import Finished as Finished
from libra.core.telemetry import Statistics as Statistics


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


_ROUTED_ONLY = frozenset({ToolReturned, Placed})
"""Events, nine tenths of all, that nobody but the router hears: neither planned from nor remembered."""


@dataclass(frozen=True)
class ComposedPolicy:
    """Planner + gate + router + elastic pool. `replan_every` counts steps between planner runs; 0 means never.

    `detector` makes the change detector of a run; the planner is also asked at the step that brings a change to light.
    """

    name: str
    planner: Planner
    router: Router
    gate: Gate = field(default_factory=NeverReplan)
    elastic: Elastic = field(default_factory=NoElastic)
    replan_every: int = 0
    detector: Callable[[RunStart], ChangeDetector] = NoDetector
    _memory: Telemetry = field(default_factory=Telemetry, repr=False)

    def with_(self, **parts: Any) -> ComposedPolicy:
        """The same system with other parts, e.g. `.with_(router=LeastLoaded())`, with a fresh memory."""
        return replace(self, **parts, _memory=Telemetry())

    def without(self, part: str) -> ComposedPolicy:
        """The same system less one part: `gate` (never replan), `elastic` (every change is a repartition) or
        `detector` (the window is never cut)."""
        defaults: dict[str, Any] = {"gate": NeverReplan(), "elastic": NoElastic(), "detector": NoDetector}
        if part not in defaults:
            mend = "replace it: .with_(planner=..., router=...)"
            raise unknown_name("part", part, defaults, where="ComposedPolicy.without", mend=mend)
        return self.with_(**{part: defaults[part]})

    def decide(self, event: Event) -> Sequence[Command]:
        if type(event) in _ROUTED_ONLY:
            return self.router.on(event)
        self._memory.remember(event)
        routed = self.router.on(event)
        if isinstance(event, RunStart):
            return (*self._first_plan(event), *routed)
        if isinstance(event, PlannerTick):
            return (*self._replan(event), *routed)
        return routed

    def statistics(self) -> Statistics:
        """The current window. Before the first trajectory ends it is the profiling run's."""
        return self._memory.statistics()

    def _first_plan(self, event: RunStart) -> Sequence[Command]:
        self._memory.run, self._memory.detector = event, self.detector(event)
        return (ApplyPlan(self.planner.plan(self.statistics(), None)),)

    def _replan(self, event: PlannerTick) -> Sequence[Command]:
        if self.replan_every <= 0 or ((event.step + 1) % self.replan_every and not self._memory.has_changed):
            return ()
        statistics = self.statistics()
        candidate = self.planner.plan(statistics, event.allocation)
        if not self.gate.accepts(candidate, statistics, event.allocation):
            return ()
        moves = self.elastic.reconcile(candidate, event.allocation)
        return (Switch(tuple(moves)),) if moves else (ApplyPlan(candidate),)
