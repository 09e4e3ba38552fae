"""Live trajectories: admission, placements, turns on engines, tool returns and ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from libra.backends.sim.clock import Clock
from libra.backends.sim.cores import compiled_module, shared_module
from libra.backends.sim.fleet import Fleet
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.links import End, Links
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import Truth
from libra.core.commands import Place
from libra.core.errors import PolicyError
from libra.core.events import Event, Placed, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.records import ToolReturn, Trajectory

How = Literal["start", "stay", "transfer", "recompute"]


@dataclass(slots=True)
class Live:
    """A trajectory on its way. `context_tok` counts prompt, generated and observed tokens so far."""

    id: int
    record: Trajectory
    meant_step: int
    context_tok: int
    turn: int = 0
    waits: bool = False
    """A start or tool event is out and no placement has answered it yet."""
    instance: int = -1
    start_s: float = 0.0
    end_s: float = 0.0
    first_instance: int = -1
    first_bucket: int = 0
    last_bucket: int = 0
    num_moves: int = 0
    moved_tok: int = 0
    prefilled_tok: int = 0
    cached_tok: int = 0
    num_preemptions: int = 0
    queue_s: float = 0.0
    tool_s: float = 0.0
    version_start: int = 0
    version_end: int = 0


@dataclass
class Rollout:
    """Feeds trajectories to the policy and the engines. `emit` delivers an event, `on_end` is told of each end.

    `version` is the policy version in the engines. While no engine is up, starts and tool returns wait.
    """

    clock: Clock
    fleet: Fleet
    truth: Truth
    emit: Callable[[Event], None]
    on_end: Callable[[Live], None]
    in_flight_cap: int
    kv_transfer: bool
    uses_oracle: bool
    version: int = 0
    links: Links = field(default_factory=Links)
    live: dict[int, Live] = field(default_factory=dict)
    num_started: int = 0
    num_ended: int = 0
    _num_preemptions: int = 0
    _idle_total_s: float = 0.0
    _idle_since_s: float = 0.0
    _queue: deque[tuple[Trajectory, int]] = field(default_factory=deque)
    _held: deque[Callable[[], None]] = field(default_factory=deque)

    def launch(self, group: Sequence[Trajectory], meant_step: int) -> None:
        """Queue a group for admission."""
        self._queue.extend((record, meant_step) for record in group)
        self.pump()

    def pump(self) -> None:
        """Admit queued trajectories as far as the in-flight cap allows, and release what waited for an engine."""
        if not self.fleet.any_up:
            return
        while self._held and self.fleet.any_up:
            self._held.popleft()()
        while self._queue and (not self.in_flight_cap or len(self.live) < self.in_flight_cap):
            self._start(*self._queue.popleft())

    @property
    def num_queued(self) -> int:
        """Trajectories that wait for admission or for an engine."""
        return len(self._queue) + len(self._held)

    @property
    def num_preemptions(self) -> int:
        """Preemptions of turns that are over."""
        return self._num_preemptions

    @property
    def num_unstarted(self) -> int:
        """Trajectories that wait for admission."""
        return len(self._queue)

    def idle_s(self) -> float:
        """Time without a live trajectory since the start."""
        return self._idle_total_s + (0.0 if self.live else self.clock.now_s - self._idle_since_s)

    def _start(self, record: Trajectory, meant_step: int) -> None:
        live = Live(self.num_started, record, meant_step, record.prompt_tok, waits=True)
        self.num_started += 1
        if not self.live:
            self._idle_total_s += self.clock.now_s - self._idle_since_s
        self.live[live.id] = live
        self.emit(
            TrajectoryStart(
                self.clock.now_s,
                live.id,
                record.prompt_id,
                record.group,
                record.sample,
                record.prompt_tok,
                meant_step,
                record.total_tok if self.uses_oracle else None,
            )
        )

    # -- placements ------------------------------------------------------------------------------------------------

    def place(self, command: Place) -> None:
        """Carry out a placement. Raises `PolicyError` when the trajectory does not wait or the engine is not up."""
        live = self.live.get(command.trajectory)
        if live is None or not live.waits:
            raise PolicyError(f"placed trajectory {command.trajectory}, which does not wait for a placement")
        if not self.fleet.up(command.instance):
            up = [id_ for id_, state in self.fleet.states.items() if state == "up"]
            raise PolicyError(f"placed trajectory {live.id} on instance {command.instance}; up are {up}")
        live.waits = False
        bucket = self.fleet.specs[command.instance].bucket
        live.last_bucket = bucket
        now = self.clock.now_s
        if live.instance < 0:
            live.start_s, live.first_instance, live.first_bucket = now, command.instance, bucket
            live.version_start = self.version
            how: How = "start"
            moved_tok, delay_s = 0, 0.0
        elif live.instance == command.instance:
            how, moved_tok, delay_s = "stay", 0, 0.0
        else:
            how, moved_tok, delay_s = self._migrate(live, command)
        live.instance = command.instance
        self.emit(Placed(now, live.id, command.instance, how, moved_tok))
        engine = self.fleet.instances[command.instance]
        if delay_s:
            engine.num_arriving += 1
            weights = engine.cache.num_resets
            self.clock.at(now + delay_s, lambda: self._arrive(live, engine, weights))
        else:
            self._submit(live, engine)

    def _migrate(self, live: Live, command: Place) -> tuple[How, int, float]:
        """Move a context between engines by the cheaper way. Returns how, the tokens moved and when they are there,
        in seconds from now: transfers that share a link follow one another."""
        source = self.fleet.instances.get(live.instance)
        target = self.fleet.instances[command.instance]
        resident = source is not None and source.cache.cached_tok(live.id) > 0
        moved_tok = live.context_tok - self._last_payload(live)
        live.num_moves += 1
        live.moved_tok += moved_tok
        how: How = "recompute"
        delay_s = 0.0
        if source is not None:
            if resident and self.kv_transfer and command.kv != "recompute":
                ends, same_node = self._ends(source, target)
                transfer_s = self.truth.kv_transfer_s(moved_tok, same_node=same_node)
                transfer_s += self.links.wait_s(ends, self.clock.now_s)
                if command.kv == "transfer" or transfer_s < target.model.prefill_s(moved_tok):
                    how, delay_s = "transfer", transfer_s
                    self.links.occupy(ends, self.clock.now_s + delay_s)
            source.cache.forget(live.id)
        return how, moved_tok, delay_s

    def _ends(self, source: Instance, target: Instance) -> tuple[tuple[End, End], bool]:
        """What a transfer occupies, and whether it stays in a node."""
        nodes = self.fleet.node_of.get(source.id, -1), self.fleet.node_of.get(target.id, -1)
        if nodes[0] == nodes[1]:
            return (("engine out", source.id), ("engine in", target.id)), True
        return (("node out", nodes[0]), ("node in", nodes[1])), False

    @staticmethod
    def _last_payload(live: Live) -> int:
        tool = live.record.turns[live.turn - 1].tool if live.turn else None
        return tool.payload_tok if tool else 0

    def _arrive(self, live: Live, engine: Instance, weights: int) -> None:
        """A transferred context is there. Useless, and computed anew, if the weights changed while it travelled."""
        engine.num_arriving -= 1
        if engine.cache.num_resets == weights:
            record = live.record
            own_tok = live.context_tok - record.prompt_tok - self._last_payload(live)
            engine.cache.adopt(live.id, (record.prompt_id, record.prompt_tok), own_tok)
        self._submit(live, engine)

    def _submit(self, live: Live, engine: Instance) -> None:
        record = live.record
        generate_tok = record.turns[live.turn].generated_tok
        request = Request(live.id, (record.prompt_id, record.prompt_tok), live.context_tok, generate_tok)
        if generate_tok:
            engine.submit(request)
        else:
            self.clock.at(self.clock.now_s, lambda: self.turn_done(engine, request))

    # -- turns -----------------------------------------------------------------------------------------------------

    def turn_done(self, engine: Instance, request: Request) -> None:
        """An engine has generated a turn's last token: run the tool, or end the trajectory."""
        live = self.live[request.trajectory]
        tool = self._next_turn(live)
        live.prefilled_tok += request.prefilled_tok
        live.cached_tok += request.cached_tok
        live.num_preemptions += request.num_preemptions
        live.queue_s += request.queue_s
        self._num_preemptions += request.num_preemptions
        if tool is None:
            self._end(live)
        else:
            latency_s = tool.latency_s or 0.0
            self.clock.at(self.clock.now_s + latency_s, lambda: self._tool_returned(live, tool, latency_s))
        self.fleet.drained(engine)

    def _next_turn(self, live: Live) -> ToolReturn | None:
        """Count a turn that is over; returns what ended it."""
        turn = live.record.turns[live.turn]
        live.turn += 1
        live.context_tok += turn.generated_tok
        live.version_end = self.version
        return turn.tool

    def _tool_returned(self, live: Live, tool: ToolReturn, latency_s: float) -> None:
        live.tool_s += latency_s
        live.context_tok += tool.payload_tok
        live.waits = True
        self._ask(live, tool, latency_s)

    def _ask(self, live: Live, tool: ToolReturn, latency_s: float) -> None:
        if not self.fleet.any_up:
            self._held.append(lambda: self._ask(live, tool, latency_s))
            return
        self.emit(
            ToolReturned(
                self.clock.now_s,
                live.id,
                live.instance,
                live.turn,
                tool.tool,
                tool.payload_tok,
                tool.status,
                latency_s,
                live.context_tok,
            )
        )

    def _end(self, live: Live) -> None:
        live.end_s = self.clock.now_s
        del self.live[live.id]
        self._idle_since_s = self.clock.now_s
        self.num_ended += 1
        source = self.fleet.instances.get(live.instance)
        if source is not None:
            source.cache.forget(live.id)
        self.emit(
            TrajectoryEnd(
                self.clock.now_s,
                live.id,
                live.instance,
                live.record.status,
                live.record.generated_tok,
                live.context_tok,
                live.turn,
                live.tool_s,
                live.record.reward,
            )
        )
        self.on_end(live)
        self.pump()


def make_rollout(options: SimOptions, *args: Any) -> Rollout:
    """A rollout for the core that the options choose."""
    if options.table:
        shared: Rollout = shared_module("rollout").SharedRollout(
            shared_module("table").read_table(options.table), *args
        )
        return shared
    kind = compiled_module("rollout").CompiledRollout if options.engine == "compiled" else Rollout
    rollout: Rollout = kind(*args)
    return rollout
