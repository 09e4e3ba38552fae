"""A tiny scripted backend: it drives a policy through a short run with tools, drift, a lost engine and ticks.

No model of anything: times are arbitrary and every command takes effect at once. What matters is that events come in
an order that a real run has, follow from the commands, and are the same in every run of the same script.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    Placed,
    PlannerTick,
    RunStart,
    StepEnd,
    ToolReturned,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, InstanceStatus, Plan
from libra.core.policy import Policy
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.rng import stream

GROUP_SIZE = 4
NUM_PROMPTS = 3
MAX_CONTEXT_TOK = 40960
TOOLS = ("bash", "python", "search")

Oracle = Literal["true", "hidden", "wrong"]


@dataclass(frozen=True)
class Script:
    """What happens whatever the policy does. Mean length grows from `mean_tok[0]` to `mean_tok[1]` over the run."""

    pipeline: PipelineSpec = field(default_factory=PipelineSpec)
    batch: int = 8
    num_steps: int = 11
    seed: int = 0
    mean_tok: tuple[int, int] = (2500, 11500)
    loses_engine_at: int = 2
    regains_engine_at: int = 3


@dataclass(frozen=True)
class Exchange:
    """One event, the answer to it, and what was true when it was asked."""

    event: Event
    commands: tuple[Command, ...]
    up: frozenset[int]
    live: frozenset[int]


@dataclass
class _Live:
    record: Trajectory
    instance: int = -1
    turn: int = 0
    context_tok: int = 0


def trajectory(rng: np.random.Generator, number: int, mean_tok: float) -> Trajectory:
    """Lognormal total length with a few tool returns; every eighth is truncated, every ninth aborted."""
    total_tok = int(np.clip(mean_tok * rng.lognormal(-0.5, 1.0), 900, MAX_CONTEXT_TOK))
    num_tools = int(rng.integers(0, 6))
    part_tok = (total_tok - 500) // (2 * num_tools + 1)
    statuses = ("ok", "ok", "ok", "error", "timeout")
    turns = [
        Turn(part_tok, ToolReturn(str(rng.choice(TOOLS)), part_tok, statuses[int(rng.integers(5))], 1.0))
        for _ in range(num_tools)
    ]
    status = "truncated" if number % 8 == 7 else "aborted" if number % 9 == 8 else "completed"
    group = number // GROUP_SIZE
    return Trajectory(f"p{group % NUM_PROMPTS}", group, number % GROUP_SIZE, 500, (*turns, Turn(part_tok)), 1.0, status)


@dataclass
class Feeder:
    """Runs a script against a policy and keeps every exchange."""

    policy: Policy
    cluster: Cluster
    model: Model
    script: Script = field(default_factory=Script)
    oracle: Oracle = "hidden"
    first_id: int = 0
    """Number of the first trajectory."""
    exchanges: list[Exchange] = field(default_factory=list)
    plan: Plan | None = None
    _lost: int | None = None
    _now_s: float = 0.0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _queue: deque[Event] = field(default_factory=deque)
    _live: dict[int, _Live] = field(default_factory=dict)
    _order: int = 0
    _ended: int = 0
    _started: int = 0

    def run(self) -> list[Exchange]:
        """Returns when every step is done, or early when a policy leaves trajectories without a placement."""
        script = self.script
        rng = stream("feeder-profile", script.seed)
        profile = tuple(trajectory(rng, n, script.mean_tok[0]) for n in range(32))
        self._emit(
            RunStart(
                0.0,
                self.cluster.name,
                self.model.name,
                script.pipeline,
                script.batch,
                GROUP_SIZE,
                script.num_steps,
                MAX_CONTEXT_TOK,
                profile,
            )
        )
        self._start_step()
        while self._heap:
            self._now_s, _, action = heapq.heappop(self._heap)
            action()
            self._drain()
        return self.exchanges

    def allocation(self) -> Allocation:
        assert self.plan is not None
        lent = set(self.plan.hybrid_training)
        statuses = tuple(
            InstanceStatus(
                i.id,
                i.tp,
                i.bucket,
                "training" if i.hybrid in lent else "down" if i.id == self._lost else "up",
                i.hybrid,
            )
            for i in self.plan.instances
        )
        dp = self.plan.train.dp + len(lent)
        bounds = self.plan.bounds_tok
        return Allocation(self.plan.train, dp, statuses, bounds, self.plan.hybrid_training, self.plan.colocated)

    # -- events out, commands in -----------------------------------------------------------------------------------

    def _emit(self, event: Event) -> None:
        self._queue.append(event)

    def _drain(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            up = frozenset(i.id for i in self.allocation().up()) if self.plan else frozenset()
            live = frozenset(self._live)
            commands = tuple(self.policy.decide(event))
            self.exchanges.append(Exchange(event, commands, up, live))
            for command in commands:
                self._apply(command)

    def _apply(self, command: Command) -> None:
        if isinstance(command, ApplyPlan):
            self.plan = command.plan
            self._emit(AllocationChanged(self._now_s, self.allocation(), "plan"))
        elif isinstance(command, Switch):
            assert self.plan is not None
            training = set(self.plan.hybrid_training)
            for move in command.moves:
                (training.add if move.to == "train" else training.discard)(move.hybrid)
            self.plan = msgspec.structs.replace(self.plan, hybrid_training=tuple(sorted(training)))
            self._emit(AllocationChanged(self._now_s, self.allocation(), "switch"))
        else:
            self._place(command)

    def _place(self, command: Place) -> None:
        live = self._live.get(command.trajectory)
        if live is None:
            return
        how = "start" if live.instance < 0 else "stay" if live.instance == command.instance else "recompute"
        live.instance = command.instance
        self._emit(Placed(self._now_s, command.trajectory, command.instance, how))
        turn = live.record.turns[live.turn]
        seconds = 0.02 * turn.generated_tok
        self._after(seconds, lambda: self._turn_done(command.trajectory, live))

    # -- the script ------------------------------------------------------------------------------------------------

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self._now_s + seconds, self._order, action))

    def _start_step(self) -> None:
        step = self._started // self.script.batch
        first, last = self.script.mean_tok
        mean_tok = first + (last - first) * step / max(1, self.script.num_steps - 1)
        rng = stream("feeder", self.script.seed, step)
        self._drain()
        for _ in range(self.script.batch):
            record = trajectory(rng, self._started, mean_tok)
            id_ = self.first_id + self._started
            self._started += 1
            self._live[id_] = _Live(record, context_tok=record.prompt_tok)
            truth = {"true": record.total_tok, "hidden": None, "wrong": 50_000 - record.total_tok}[self.oracle]
            self._emit(
                TrajectoryStart(
                    self._now_s, id_, record.prompt_id, record.group, record.sample, record.prompt_tok, step, truth
                )
            )
        self._drain()

    def _turn_done(self, id_: int, live: _Live) -> None:
        turn = live.record.turns[live.turn]
        live.turn += 1
        live.context_tok += turn.generated_tok
        if turn.tool is None:
            self._end(id_, live)
            return
        tool = turn.tool
        live.context_tok += tool.payload_tok
        self._after(1.0, lambda: self._emit(self._returned(id_, live, tool)))

    def _returned(self, id_: int, live: _Live, tool: ToolReturn) -> ToolReturned:
        return ToolReturned(
            self._now_s,
            id_,
            live.instance,
            live.turn,
            tool.tool,
            tool.payload_tok,
            tool.status,
            1.0,
            live.context_tok,
        )

    def _end(self, id_: int, live: _Live) -> None:
        record = live.record
        del self._live[id_]
        self._ended += 1
        generated_tok, num_turns = record.generated_tok, len(record.turns)
        self._emit(
            TrajectoryEnd(
                self._now_s,
                id_,
                live.instance,
                record.status,
                generated_tok,
                record.total_tok,
                num_turns,
                record.tool_s,
            )
        )
        if self._ended % self.script.batch == 0:
            self._end_step(self._ended // self.script.batch - 1)

    def _end_step(self, step: int) -> None:
        assert self.plan is not None
        # Training becomes the slower stage and rollout again, so that a planner is asked for both directions.
        train_s = 900.0 if step < 6 else 30.0
        self._emit(StepEnd(self._now_s, step, 300.0, train_s, 2.0, 302.0, 100_000, self.plan.train, self.plan.train.dp))
        self._emit(PlannerTick(self._now_s, step, self.allocation()))
        if step + 1 < self.script.num_steps:
            self._after(2.0, self._start_step)
        if step in (self.script.loses_engine_at, self.script.regains_engine_at):
            self._after(6.0, lambda: self._lose(step == self.script.loses_engine_at))

    def _lose(self, is_lost: bool) -> None:
        """Lose the first engine while trajectories live on it, or get it back."""
        up = self.allocation().up()
        is_lost = is_lost and len(up) > 1
        self._lost = up[0].id if is_lost else None
        self._emit(AllocationChanged(self._now_s, self.allocation(), "down" if is_lost else "up"))
