"""A live run as a policy sees it: turns that a framework asks for become events, placements come back as engines.

One `Session` lives in one actor and is used by one thread. It knows no framework: whoever holds it reports turns,
ends and steps, and asks where the next turn runs. The policy behind it is the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

import msgspec

from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.errors import PolicyError
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
from libra.core.plan import Allocation, InstanceState, InstanceStatus, Plan, problem_in
from libra.core.records import ToolReturn
from libra.integrations.books import Books
from libra.integrations.relabel import relabelled
from libra.integrations.turns import Ended, Live, StepDone, Turn, TurnDone, joined
from libra.results.schemas import StepRow
from libra.runtime.controller import Controller

UNKNOWN_TOOL = ToolReturn("unknown", 0, "unknown")


class SavedSession(msgspec.Struct, frozen=True):
    """A session's books at a checkpoint; `elapsed_s` counts from the run's start."""

    elapsed_s: float
    plan: Plan
    groups: dict[str, int]
    num_started: int
    live: dict[str, Live]
    ended: dict[str, Live]


class Session:
    """`run` is the first event, its `t_s` ignored; `clock` counts seconds. `start` comes first, then `attach`."""

    def __init__(self, controller: Controller, run: RunStart, clock: Callable[[], float]) -> None:
        self.controller, self.run, self._clock, self._began_s = controller, run, clock, 0.0
        self._held_s: float | None = 0.0
        self.plan: Plan | None = None
        self.live: dict[str, Live] = {}
        self.ended_keys: dict[str, Live] = {}
        self._states: dict[int, InstanceState] = {}
        self._groups: dict[str, int] = {}
        self._num_started = 0
        self._awaiting: Live | None = None
        self._books = Books()

    # -- set-up --------------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        """The run's clock, which stands still until its engines are up."""
        return self._clock() - self._began_s if self._held_s is None else self._held_s

    def start(self) -> Plan:
        """The policy's first plan. Raises `PolicyError` when it gives none."""
        self._emit(msgspec.structs.replace(self.run, t_s=self.now_s()))
        if self.plan is None:
            raise PolicyError("the policy answered the run's start with no plan")
        return self.plan

    def state(self) -> SavedSession:
        """What `restore` needs, beside the policy's own past."""
        assert self.plan is not None, "start() comes first"
        return SavedSession(self.now_s(), self.plan, dict(self._groups), self._num_started, dict(self.live),
                            dict(self.ended_keys))  # fmt: skip

    def restore(self, saved: SavedSession, finished: Collection[str]) -> None:
        """Go on from a saved state, in place of `start`; its policy has lived through the saved run's events.

        `finished` names the trajectories that the framework still holds. The others are given up: they start again
        under the same key as new trajectories, and their rows say that they were never trained.
        """
        self._held_s = saved.elapsed_s
        self.plan, self._groups, self._num_started = saved.plan, dict(saved.groups), saved.num_started
        self._books.planned(saved.plan)
        self._books.resume(saved.elapsed_s)
        self.live, self.ended_keys = dict(saved.live), dict(saved.ended)
        for key in tuple(self.live):
            self.ended(Ended(key, "aborted"))
        for key in [key for key in self.ended_keys if key not in finished]:
            self._write(self.ended_keys.pop(key))

    def attach(self, instances: Sequence[int]) -> None:
        """These instances of the plan are up; the others of it are down. The clock goes on."""
        self._began_s, self._held_s = self._clock() - self.now_s(), None
        up = set(instances)
        assert self.plan is not None, "start() comes first"
        self._states = {each.id: "up" if each.id in up else "down" for each in self.plan.instances}
        self._emit(AllocationChanged(self.now_s(), self.allocation(), "plan"))

    def allocation(self) -> Allocation:
        plan = self.plan
        assert plan is not None, "start() comes first"
        instances = tuple(
            InstanceStatus(each.id, each.tp, each.bucket, self._states.get(each.id, "down"), each.hybrid)
            for each in plan.instances
        )
        return Allocation(plan.train, plan.train.dp, instances, plan.bounds_tok, (), plan.colocated)

    def set_state(self, instance: int, state: InstanceState, reason: str = "") -> None:
        """An engine came up or was lost. Turns on a lost one end here; their trajectories stay."""
        if self._states.get(instance) == state:
            return
        self._states[instance] = state
        if state != "up":
            self._books.stop_all(instance, self.now_s())
        cause: Literal["up", "down"] = "up" if state == "up" else "down"
        self._emit(AllocationChanged(self.now_s(), self.allocation(), cause, reason))

    def up(self) -> tuple[int, ...]:
        return tuple(id_ for id_, state in self._states.items() if state == "up")

    # -- turns ---------------------------------------------------------------------------------------------------

    def place(self, turn: Turn) -> int | None:
        """Instance for a turn; None while no engine is up (ask again). Raises `PolicyError`."""
        if not self.up():
            return None
        live = self.live.get(turn.key)
        if live is None:
            live = self._started(turn)
        elif turn.is_resumed:
            self._resume(live, turn)
        else:
            self._tool_returned(live, turn)
        self._books.begin(live.instance, self.now_s())
        return live.instance

    def turn_done(self, done: TurnDone) -> None:
        live = self.live.get(done.key)
        if live is None:
            return
        generated_tok = sum(span.num_tok for span in done.spans)
        live.prefilled_tok += max(0, live.total_tok - done.cached_tok) + done.refilled_tok
        live.generated_tok += generated_tok
        live.cached_tok += done.cached_tok
        live.num_preemptions += done.num_preemptions
        if live.queue_s is not None:
            live.queue_s = None if done.queue_s is None else live.queue_s + done.queue_s
        live.spans.append(joined(done.spans))
        live.num_turns += 1
        self._books.finish(live.instance, self.now_s())

    def turn_lost(self, key: str) -> None:
        """A turn ended without an answer (aborted for new weights, or its engine died); it will be asked for again."""
        if key in self.live:
            self._books.finish(self.live[key].instance, self.now_s())

    def ended(self, end: Ended) -> None:
        live = self.live.pop(end.key, None)
        if live is None:
            return
        live.end_s, live.status, live.reward = self.now_s(), end.status, end.reward
        self.ended_keys[end.key] = live
        if not self.live:
            self._books.idle(live.end_s)
        self._emit(
            TrajectoryEnd(
                live.end_s, live.id, live.instance, live.status, live.generated_tok, live.total_tok, live.num_turns,
                live.tool_s, live.reward,
            )
        )  # fmt: skip

    def write_untrained(self, key: str) -> None:
        """The row of an ended trajectory of which nobody will say when it was trained."""
        live = self.ended_keys.pop(key, None)
        if live is not None:
            self._write(live)

    # -- steps ---------------------------------------------------------------------------------------------------

    def step_done(self, done: StepDone) -> StepRow:
        """Close a training step, then let the policy plan."""
        batch = [self.ended_keys.pop(key) for key in done.keys]
        assert self.plan is not None, "start() comes first"
        row = self._books.close_step(done, batch, self.plan, self.now_s())
        for live in batch:
            self._write(live, done.step, done.version)
        self.controller.recorder.step(row)
        plan = self.plan
        is_async = self.run.pipeline.kind == "async"
        self._emit(
            StepEnd(
                row.end_s, row.step, row.wait_rollout_s if is_async else row.rollout_s, row.train_s, row.sync_s,
                row.end_s - row.start_s, row.prompt_tok + row.generated_tok + row.observed_tok, plan.train,
                plan.train.dp, row.max_staleness,
            )
        )  # fmt: skip
        self._emit(PlannerTick(self.now_s(), done.step, self.allocation()))
        return row

    def close(self) -> None:
        """Rows of trajectories that were never trained."""
        now_s = self.now_s()
        for live in self.live.values():
            live.end_s = now_s
        for live in (*self.ended_keys.values(), *self.live.values()):
            self._write(live)
        self.ended_keys.clear()
        self.live.clear()

    # -- inner wiring --------------------------------------------------------------------------------------------

    def _write(self, live: Live, trained_step: int = -1, version: int = -1) -> None:
        self.controller.recorder.trajectory(live.row(trained_step, version), live.version_rows())

    def _emit(self, event: Event) -> None:
        self.controller.emit(event, self._apply)

    def _apply(self, command: Command) -> None:
        if isinstance(command, Place):
            self._placed(command)
        elif isinstance(command, ApplyPlan):
            self._planned(command.plan)
        elif isinstance(command, Switch):
            self._reject("live engines cannot change sides yet")
        else:
            raise PolicyError(f"no command: {command!r}")

    def _planned(self, plan: Plan) -> None:
        if self.plan is None:
            if problem := problem_in(plan, self.run.max_context_tok):
                raise PolicyError(f"the policy's first plan cannot be: {problem}")
            if plan.colocated:
                raise PolicyError("the policy's first plan is colocated; live engines have GPUs of their own")
            self.plan = plan
            self._books.planned(plan)
            return
        changed = relabelled(self.plan, plan)
        if changed is None:
            self._reject("live engines cannot change their sizes yet; only buckets and bounds follow a new plan")
            return
        self.plan = changed
        self._emit(AllocationChanged(self.now_s(), self.allocation(), "plan"))

    def _reject(self, reason: str) -> None:
        self._emit(AllocationChanged(self.now_s(), self.allocation(), "rejected", reason))

    def _started(self, turn: Turn) -> Live:
        group = self._groups.setdefault(turn.group, len(self._groups))
        live = Live(self._num_started, turn, group, self.now_s(), prompt_tok=turn.context_tok)
        self._num_started += 1
        self.live[turn.key] = live
        self._ask(
            live,
            TrajectoryStart(live.start_s, live.id, turn.prompt_id, group, turn.sample, turn.context_tok, turn.step),
        )
        return live

    def _tool_returned(self, live: Live, turn: Turn) -> None:
        payload_tok = turn.context_tok - live.total_tok
        tool = turn.tool or UNKNOWN_TOOL
        latency_s = tool.latency_s or 0.0
        live.observed_tok += payload_tok
        live.payload_tok = payload_tok
        live.tool_s += latency_s
        self._ask(
            live,
            ToolReturned(
                self.now_s(), live.id, live.instance, live.num_turns, tool.tool, payload_tok, tool.status, latency_s,
                turn.context_tok,
            ),
        )  # fmt: skip

    def _ask(self, live: Live, event: TrajectoryStart | ToolReturned) -> None:
        self._awaiting = live
        self._emit(event)
        if self._awaiting is not None:
            raise PolicyError(f"trajectory {live.id} waits for a placement, and the policy gave none")

    def _placed(self, command: Place) -> None:
        live = self._awaiting
        if live is None or live.id != command.trajectory:
            raise PolicyError(f"placed trajectory {command.trajectory}, which does not wait for a placement")
        if self._states.get(command.instance) != "up":
            raise PolicyError(f"placed trajectory {live.id} on instance {command.instance}; up are {self.up()}")
        self._awaiting = None
        self._move(live, command.instance)

    def _resume(self, live: Live, turn: Turn) -> None:
        """The same turn again. Where its engine is gone, the least busy one of its bucket, or else of all, takes it."""
        if self._states.get(live.instance) == "up":
            return
        buckets = self._buckets()
        alike = [id_ for id_ in self.up() if buckets[id_] == buckets.get(live.instance)] or self.up()
        self._move(live, min(alike, key=lambda id_: (self._books.working[id_], id_)))

    def _move(self, live: Live, instance: int) -> None:
        before, bucket = live.instance, self._buckets()[instance]
        moved_tok, how = 0, "start" if before < 0 else "stay"
        if before < 0:
            live.first_instance, live.first_bucket = instance, bucket
        elif before != instance:
            moved_tok, how = live.total_tok - live.payload_tok, "recompute"
            live.num_moves += 1
            live.moved_tok += moved_tok
        live.instance, live.last_bucket = instance, bucket
        self._emit(Placed(self.now_s(), live.id, instance, how, moved_tok))  # type: ignore[arg-type]

    def _buckets(self) -> Mapping[int, int]:
        assert self.plan is not None, "start() comes first"
        return {each.id: each.bucket for each in self.plan.instances}
