"""Which GPU does what: engines, the trainer's replicas, and what plans and switches cost while they take effect."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from libra.backends.sim.clock import Clock
from libra.backends.sim.cores import make_instance
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import Truth
from libra.core.errors import CapacityError
from libra.core.events import AllocationChanged
from libra.core.hardware import Cluster
from libra.core.plan import (
    Allocation,
    InstanceSpec,
    InstanceState,
    InstanceStatus,
    Move,
    Plan,
    TrainLayout,
    problem_in,
)

Report = Callable[[AllocationChanged], None]
Cause = Literal["plan", "switch", "up", "down", "rejected"]


def pack(plan: Plan, cluster: Cluster) -> dict[int, int]:
    """Node of each instance: tensor-parallel groups of the trainer first, then instances by id, each in the first node
    with room. Raises `CapacityError` when a group does not fit into any node."""
    free = [cluster.gpus_per_node] * cluster.num_nodes

    def take(num_gpus: int, what: str) -> int:
        for node, room in enumerate(free):
            if room >= num_gpus:
                free[node] -= num_gpus
                return node
        raise CapacityError(
            f"{what} needs {num_gpus} GPUs of one node and none has them left",
            where="plan",
            value=plan.note or None,
            mend=f"the cluster {cluster.name} has {cluster.num_nodes} x {cluster.gpus_per_node} GPUs",
        )

    layout = plan.train
    for group in range(layout.dp * layout.pp * layout.cp):
        take(layout.tp, f"training group {group} (TP-{layout.tp})")
    if plan.colocated:
        free = [cluster.gpus_per_node] * cluster.num_nodes
    ordered = sorted(plan.instances, key=lambda spec: spec.id)
    return {spec.id: take(spec.tp, f"instance {spec.id} (TP-{spec.tp})") for spec in ordered}


class Fleet:
    """Engines by id, their states, and the hybrid replicas that train. `report` receives acknowledgements."""

    def __init__(
        self,
        cluster: Cluster,
        truth: Truth,
        options: SimOptions,
        clock: Clock,
        on_done: Callable[[Instance, Request], None],
        report: Report,
        max_context_tok: int,
    ) -> None:
        self.cluster, self.truth, self.options, self.clock = cluster, truth, options, clock
        self._on_done, self._acknowledge, self.max_context_tok = on_done, report, max_context_tok
        self.plan: Plan | None = None
        self.plans: list[Plan] = []
        """Every plan that was carried out, for warnings about layouts that nobody measured."""
        self.instances: dict[int, Instance] = {}
        self.specs: dict[int, InstanceSpec] = {}
        self.states: dict[int, InstanceState] = {}
        self.node_of: dict[int, int] = {}
        self.joined_s: dict[int, float] = {}
        """Hybrid replica that trains (or is joining) -> time from which it takes part; infinite while it drains."""
        self._join_delay_s: dict[int, float] = {}
        self._trainer_ready_s = 0.0
        self._regroup_s = 0.0
        """Regrouping that the trainer has still to do, once the engines that leave have drained."""
        self._waits_for_trainer: Callable[[float], None] | None = None
        self.moving_gpu_s = 0.0
        self.retired_busy_gpu_s = 0.0
        self._starting: list[InstanceSpec] = []
        self._kept: set[int] = set()
        """Engines of the present plan; others drain and leave."""
        self._num_up = 0
        self._pool_gpu_s = (0.0, 0.0)
        self._pools, self._pools_since_s = (0, 0), 0.0

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def any_up(self) -> bool:
        return self._num_up > 0

    def up(self, instance_id: int) -> bool:
        return self.states.get(instance_id) == "up"

    def live(self) -> list[Instance]:
        return [engine for id_, engine in self.instances.items() if self.states[id_] in ("up", "draining")]

    def busy_gpu_s(self) -> float:
        """GPU seconds in which an engine had work, since the start."""
        return self.retired_busy_gpu_s + sum(engine.busy_s * engine.tp for engine in self.instances.values())

    def pool_gpu_s(self) -> tuple[float, float]:
        """GPU seconds that rollout and training have had since the start, used or not."""
        since_s = self.clock.now_s - self._pools_since_s
        rollout_gpu_s, train_gpu_s = self._pool_gpu_s
        return rollout_gpu_s + self._pools[0] * since_s, train_gpu_s + self._pools[1] * since_s

    def num_rollout_gpus(self) -> int:
        return sum(self.specs[i].tp for i, state in self.states.items() if state in ("up", "draining", "starting"))

    def train_layout(self) -> TrainLayout:
        """The layout of the next training step: core plus the hybrid replicas that have joined by now."""
        assert self.plan is not None
        core = self.plan.train
        joined = sum(1 for t_s in self.joined_s.values() if t_s <= self.clock.now_s)
        return core if not joined else _with_dp(core, core.dp + joined)

    def allocation(self) -> Allocation:
        assert self.plan is not None
        statuses = tuple(
            InstanceStatus(spec.id, spec.tp, spec.bucket, self.states[spec.id], spec.hybrid)
            for spec in sorted(self.specs.values(), key=lambda spec: spec.id)
        )
        return Allocation(
            train=self.plan.train,
            train_dp=self.plan.train.dp + len(self.joined_s),
            instances=statuses,
            bounds_tok=self.plan.bounds_tok,
            hybrid_training=tuple(sorted(self.joined_s)),
            colocated=self.plan.colocated,
        )

    def when_trainer_ready(self, start: Callable[[float], None]) -> None:
        """Call `start` with the time from which the trainer can work, as soon as that is known."""
        if self._regroup_s:
            self._waits_for_trainer = start
        else:
            start(max(self.clock.now_s, self._trainer_ready_s))

    # -- changing --------------------------------------------------------------------------------------------------

    def validate(self, plan: Plan) -> dict[int, int]:
        """Node of each instance. Raises `CapacityError` for a plan that is impossible, too large, or does not fit."""
        problem = problem_in(plan, self.max_context_tok)
        if problem is None and self.plan is not None and plan.colocated != self.plan.colocated:
            problem = "it changes between colocated and separate pools, which needs another pipeline"
        if problem is not None:
            raise CapacityError(f"the plan cannot be: {problem}", where="plan", value=plan.note or None)
        if plan.num_gpus > self.cluster.num_gpus:
            raise CapacityError(
                f"the plan uses {plan.num_gpus} GPUs of {self.cluster.num_gpus}", where="plan", value=plan.note or None
            )
        nodes = pack(plan, self.cluster)
        self.truth.check_train_fits(plan.train)
        for tp in {spec.tp for spec in plan.instances}:
            self.truth.step_model(tp)
        return nodes

    def install(self, plan: Plan) -> None:
        """The first plan: everything is up at once (a run starts when its engines are warm)."""
        self.node_of = self.validate(plan)
        self.plan = plan
        self.plans.append(plan)
        for spec in plan.instances:
            self._start(spec)
        self.joined_s = {}
        for hybrid in plan.hybrid_training:
            self._lend(hybrid, delay_s=0.0)
        self._report("plan")

    def repartition(self, plan: Plan) -> None:
        """Change the layout at a safe point: engines that differ restart, a changed training layout regroups."""
        assert self.plan is not None
        try:
            nodes = self.validate(plan)
        except CapacityError as error:
            self._report("rejected", str(error))
            return
        if plan.train != self.plan.train:
            self._regroup_s = self.truth.regroup_s(plan.train)
            self.moving_gpu_s += self._regroup_s * plan.train.num_gpus
        self.plans.append(plan)
        wanted = {spec.id: spec for spec in plan.instances}
        self.plan, self.node_of, self.joined_s, self._kept = plan, nodes, {}, set()
        for id_ in list(self.instances):
            spec = wanted.get(id_)
            if spec is not None and spec.tp == self.specs[id_].tp and self.states[id_] == "up":
                self.specs[id_] = spec
                self._kept.add(id_)
            else:
                self._retire(id_)
        self._starting = [spec for spec in plan.instances if spec.id not in self._kept]
        for hybrid in plan.hybrid_training:
            self._lend(hybrid, delay_s=self.truth.snapshot_join_s(plan.train))
        self._start_waiting()
        self._report("plan")

    def switch(self, moves: Sequence[Move]) -> None:
        """Move hybrid replicas at a safe point; unknown ones and moves already made are ignored with a reason."""
        known = {spec.hybrid for spec in self.specs.values() if spec.hybrid is not None}
        refused = [move for move in moves if move.hybrid not in known]
        for move in moves:
            if move.hybrid in known:
                self._move(move)
        cause: Cause = "rejected" if refused and len(refused) == len(moves) else "switch"
        reason = f"no such hybrid replica: {[move.hybrid for move in refused]}" if refused else ""
        self._report(cause, reason)

    def drained(self, engine: Instance) -> None:
        """To be called when an engine has become idle: a draining one goes where it is wanted."""
        if self.states.get(engine.id) != "draining" or not engine.is_idle:
            return
        hybrid = self.specs[engine.id].hybrid
        if engine.id not in self._kept:
            self._remove(engine.id)
            self._start_waiting()
        elif hybrid is not None:
            self.states[engine.id] = "training"
            self._join_when_drained(hybrid)
        self._report("down")

    def _move(self, move: Move) -> None:
        assert self.plan is not None
        if move.to == "train" and move.hybrid not in self.joined_s:
            delay_s = self.truth.sleep_s + self.truth.snapshot_join_s(self.plan.train)
            self._lend(move.hybrid, delay_s)
        elif move.to == "rollout" and move.hybrid in self.joined_s:
            del self.joined_s[move.hybrid]
            delay_s = self.truth.wake_s + self.truth.weight_sync_s()
            self._come_up(self._owned(move.hybrid), delay_s)

    def _report(self, cause: Cause, reason: str = "") -> None:
        """Acknowledge a change that has just been made; the pools of before end here."""
        assert self.plan is not None
        self._pool_gpu_s, self._pools_since_s = self.pool_gpu_s(), self.clock.now_s
        lent = sum(self.specs[id_].tp for id_, state in self.states.items() if state == "training")
        self._pools = (self.num_rollout_gpus(), self.plan.train.num_gpus + lent)
        self._acknowledge(AllocationChanged(self.clock.now_s, self.allocation(), cause, reason))

    def _owned(self, hybrid: int) -> list[InstanceSpec]:
        assert self.plan is not None
        return [spec for spec in self.plan.instances if spec.hybrid == hybrid]

    def _lend(self, hybrid: int, delay_s: float) -> None:
        self.joined_s[hybrid], self._join_delay_s[hybrid] = math.inf, delay_s
        for spec in self._owned(hybrid):
            if spec.id in self._kept:
                if self.states[spec.id] == "up":
                    self._num_up -= 1
                engine = self.instances[spec.id]
                engine.cache.reset()
                self.states[spec.id] = "training" if engine.is_idle else self._drain(engine)
        self._join_when_drained(hybrid)

    def _join_when_drained(self, hybrid: int) -> None:
        """Start the join of a replica once none of its engines has work left."""
        owned = self._owned(hybrid)
        lent = all(spec.id in self._kept and self.states[spec.id] == "training" for spec in owned)
        if hybrid in self.joined_s and lent:
            delay_s = self._join_delay_s[hybrid]
            self.joined_s[hybrid] = self.clock.now_s + delay_s
            self.moving_gpu_s += delay_s * sum(spec.tp for spec in owned)

    def _start(self, spec: InstanceSpec) -> None:
        model = self.truth.step_model(spec.tp)
        engine = make_instance(spec.id, model, self.options, self.clock, self._on_done)
        self.instances[spec.id], self.specs[spec.id], self.states[spec.id] = engine, spec, "up"
        self._kept.add(spec.id)
        self._num_up += 1

    def _retire(self, id_: int) -> None:
        if self.states[id_] == "up":
            self._num_up -= 1
        if self.instances[id_].is_idle:
            self._remove(id_)
        else:
            self.states[id_] = self._drain(self.instances[id_])

    @staticmethod
    def _drain(engine: Instance) -> InstanceState:
        engine.mark_leaving(True)
        return "draining"

    def _remove(self, id_: int) -> None:
        engine = self.instances.pop(id_)
        self.retired_busy_gpu_s += engine.busy_s * engine.tp
        engine.close()
        del self.specs[id_], self.states[id_]

    def _start_waiting(self) -> None:
        """Regroup the trainer and start the engines of a new plan once all engines that leave have drained (their GPUs
        are needed)."""
        if any(state == "draining" for state in self.states.values()):
            return
        if self._regroup_s:
            self._trainer_ready_s, self._regroup_s = self.clock.now_s + self._regroup_s, 0.0
            start, self._waits_for_trainer = self._waits_for_trainer, None
            if start is not None:
                start(self._trainer_ready_s)
        if not self._starting:
            return
        delay_s = self.truth.cold_start_s
        starting, self._starting = self._starting, []
        for spec in starting:
            self._start(spec)
            self._num_up -= 1
            self.states[spec.id] = "training"
        self._come_up([spec for spec in starting if spec.hybrid not in self.joined_s], delay_s)
        for hybrid in {spec.hybrid for spec in starting if spec.hybrid is not None}:
            self._join_when_drained(hybrid)

    def _come_up(self, specs: Sequence[InstanceSpec], delay_s: float) -> None:
        """Engines that start together report together: a queue that waits for the first must see all of them."""
        engines = [self.instances[spec.id] for spec in specs]
        for spec in specs:
            self.states[spec.id] = "starting"
            self.moving_gpu_s += delay_s * spec.tp

        def ready() -> None:
            came = [e for e in engines if self.instances.get(e.id) is e and self.states[e.id] == "starting"]
            for engine in came:
                self.states[engine.id] = "up"
                engine.mark_leaving(False)
                self._num_up += 1
            if came:
                self._report("up")

        if engines:
            self.clock.at(self.clock.now_s + delay_s, ready)


def _with_dp(layout: TrainLayout, dp: int) -> TrainLayout:
    return msgspec.structs.replace(layout, dp=dp)
