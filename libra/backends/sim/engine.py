"""The simulator: wires clock, fleet, rollout, trainer and pipeline, and writes down what happened in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from libra.backends.sim.books import StepBooks, Totals, trajectory_row
from libra.backends.sim.checks import RunChecks
from libra.backends.sim.cores import make_clock, shared_module
from libra.backends.sim.fleet import Fleet
from libra.backends.sim.gpus import fit_of
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.pipelines import Done, make_pipeline
from libra.backends.sim.rollout import Live, make_rollout
from libra.backends.sim.truth import Truth
from libra.core.commands import ApplyPlan, Command, Place, Switch
from libra.core.errors import ConfigError, PolicyError
from libra.core.events import AllocationChanged, Event, PipelineSpec, PlannerTick, RunStart, StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.records import Trajectory
from libra.runtime.controller import Controller
from libra.workloads.base import Workload
from libra.workloads.trace_file import problem_in


class Simulator:
    """A simulated cluster: `run(controller)` drives `workload.num_steps` training steps of `pipeline`.

    `uses_oracle` puts true lengths into start events. Raises `ConfigError` for a workload that cannot run here,
    `CapacityError` for a first plan that does not fit, `PolicyError` when the policy breaks the protocol.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        workload: Workload,
        pipeline: PipelineSpec,
        *,
        uses_oracle: bool = False,
        options: SimOptions | None = None,
    ) -> None:
        self.cluster, self.model, self.workload, self.spec = cluster, model, workload, pipeline
        self.options = options or SimOptions()
        self.num_steps, self.group_size = workload.num_steps, workload.group_size
        if workload.batch % workload.group_size:
            raise ConfigError("batch is no multiple of the group size", where=workload.name, value=workload.batch)
        self.groups_per_step = workload.batch // workload.group_size
        self.version = 0
        self.clock = make_clock(self.options)
        self.truth = self._make_truth()
        self.fleet = Fleet(
            cluster,
            self.truth,
            self.options,
            self.clock,
            self._turn_done,
            self._allocation_changed,
            workload.max_context_tok,
        )
        self.rollout = make_rollout(
            self.options,
            self.clock,
            self.fleet,
            self.truth,
            self._emit,
            self._trajectory_ended,
            pipeline.in_flight_cap,
            self.options.kv_transfer,
            uses_oracle,
        )
        self.pipeline = make_pipeline(pipeline, self)
        self._checks = RunChecks(pipeline, cluster.num_gpus) if self.options.check else None
        self._controller: Controller | None = None
        self._pending: list[Command] = []
        self._steps_closed = 0
        self._safe = False
        self._books = StepBooks(Totals())

    def _make_truth(self) -> Truth:
        own = fit_of(self.cluster.gpu)
        constants = self.options.constants(own.constants, own.origins)
        return Truth(self.cluster, self.model, constants, eager=not self.options.cuda_graphs)

    # -- backend protocol ------------------------------------------------------------------------------------------

    def run(self, controller: Controller) -> None:
        self._controller = controller
        self._safe = True
        self._emit(
            RunStart(
                0.0,
                self.cluster.name,
                self.model.name,
                self.spec,
                self.workload.batch,
                self.group_size,
                self.num_steps,
                self.workload.max_context_tok,
                tuple(self.workload.profile(self.options.profile_groups)),
            )
        )
        self._safe = False
        if self.fleet.plan is None:
            raise PolicyError("the policy answered the run's start with no plan")
        if self.fleet.plan.colocated != (self.spec.kind == "colocated"):
            raise ConfigError(
                "plan and pipeline disagree about colocation",
                where="pipeline.kind",
                value=self.spec.kind,
                mend="a colocated policy runs with pipeline.kind=colocated, any other with barrier or async",
            )
        self.pipeline.start()
        if not self.clock.run(lambda: self._steps_closed == self.num_steps):
            live = self.rollout.live.values()
            waiting = sum(each.waits for each in live)
            raise PolicyError(
                f"nothing left to do after {self._steps_closed} of {self.num_steps} steps: {waiting} trajectories "
                f"wait for a placement, {len(live)} are live, {self.rollout.num_queued} are queued"
                + ("" if self.fleet.any_up else "; no engine is up")
            )

    def apply(self, command: Command) -> None:
        if isinstance(command, Place):
            self.rollout.place(command)
        elif not isinstance(command, ApplyPlan | Switch):
            raise PolicyError(f"no command: {command!r}")
        elif self._safe:
            self._change(command)
        else:
            self._pending.append(command)

    def close(self) -> None:
        self._controller = None

    # -- stages, as the pipelines ask for them ---------------------------------------------------------------------

    def launch(self, first_group: int, num_groups: int) -> None:
        for index in range(first_group, first_group + num_groups):
            group = self.workload.group(index)
            self._check_group(index, group)
            if self._checks:
                self._checks.launched(len(group))
            self.rollout.launch(group, index // self.groups_per_step)

    def _check_group(self, index: int, group: Sequence[Trajectory]) -> None:
        """What a workload owes: whole, numbered groups of sound trajectories."""
        numbers = [(row.group, row.sample) for row in group]
        problem = next((found for found in map(problem_in, group) if found), None)
        if numbers != [(index, sample) for sample in range(self.group_size)]:
            problem = f"it holds (group, sample) {numbers[:4]}, {len(numbers)} of {self.group_size}"
        if problem:
            raise ConfigError(f"group {index} is wrong: {problem}", where=f"workload {self.workload.name}")

    def train(self, batch: Sequence[Live], done: Done) -> None:
        def start(start_s: float) -> None:
            if self._checks:
                self._checks.trains(batch, start_s)
            layout = self.fleet.train_layout()
            train_s = self.truth.train_step_s(layout, [live.context_tok for live in batch]).total_s
            self._books.train_s, self._books.layout, self._books.version = train_s, layout, self.version
            self.clock.at(start_s + train_s, done)

        self.fleet.when_trainer_ready(start)

    def sync_weights(self, done: Done) -> None:
        colocated = self.spec.kind == "colocated"
        sync_s = 0.0 if colocated else self.truth.weight_sync_s()
        self._books.sync_s += sync_s
        until_s = self.clock.now_s + sync_s
        for engine in self.fleet.live():
            engine.update_weights(until_s, recompute=self.options.after_sync == "recompute")

        def synced() -> None:
            self.version += 1
            self.rollout.version = self.version
            done()

        self.clock.at(until_s, synced)

    def switch_sides(self, done: Done) -> None:
        switch_s = self.truth.colocated_switch_s
        self._books.sync_s += switch_s
        self.fleet.moving_gpu_s += switch_s * self.cluster.num_gpus
        self.clock.at(self.clock.now_s + switch_s, done)

    def close_step(self, batch: Sequence[Live]) -> None:
        books, step = self._books, self._steps_closed
        closed = Totals(
            self.clock.now_s,
            *self.fleet.pool_gpu_s(),
            self.fleet.busy_gpu_s(),
            self.rollout.idle_s(),
            self.fleet.moving_gpu_s,
            self.rollout.num_preemptions,
        )
        row = books.row(step, batch, closed, self.fleet.num_rollout_gpus(), len(self.fleet.joined_s))
        if self._checks:
            self._checks.step(batch, row, self.rollout)
        recorder = self._require().recorder
        for live in batch:
            recorder.trajectory(trajectory_row(live, step, books.version))
        recorder.step(row)
        self._steps_closed += 1
        self._books = StepBooks(closed)
        assert books.layout is not None, "a step was trained"
        self._emit(
            StepEnd(
                closed.t_s,
                step,
                row.wait_rollout_s if self.spec.kind == "async" else row.rollout_s,
                row.train_s,
                row.sync_s,
                closed.t_s - row.start_s,
                row.prompt_tok + row.generated_tok + row.observed_tok,
                books.layout,
                books.layout.dp,
                row.max_staleness,
            )
        )
        self._safe_point(step)

    def _safe_point(self, step: int) -> None:
        """Let the planner decide, and carry out what was decided here or waited for it."""
        self._safe = True
        self._emit(PlannerTick(self.clock.now_s, step, self.fleet.allocation()))
        pending, self._pending = self._pending, []
        for command in pending:
            self._change(command)
        self._safe = False
        self.rollout.pump()

    # -- inner wiring ----------------------------------------------------------------------------------------------

    def _require(self) -> Controller:
        assert self._controller is not None, "run() gives the controller"
        return self._controller

    def _emit(self, event: Event) -> None:
        self._require().emit(event, self.apply)

    def _change(self, command: Command) -> None:
        if isinstance(command, Switch):
            if self.fleet.plan is None:
                raise PolicyError("the policy answered the run's start with a switch; the first answer is a plan")
            self.fleet.switch(command.moves)
        elif isinstance(command, ApplyPlan):
            if self.fleet.plan is None:
                self.fleet.install(command.plan)
            else:
                self.fleet.repartition(command.plan)

    def _allocation_changed(self, event: AllocationChanged) -> None:
        self._emit(event)
        self.rollout.pump()

    def _turn_done(self, engine: Instance, request: Request) -> None:
        self.rollout.turn_done(engine, request)

    def _trajectory_ended(self, live: Live) -> None:
        self.pipeline.on_end(live)


def make_simulator(*args: Any, options: SimOptions, **kwargs: Any) -> Simulator:
    """A simulator for the core that the options choose."""
    kind = shared_module("engine").SharedSimulator if options.table else Simulator
    simulator: Simulator = kind(*args, options=options, **kwargs)
    return simulator
