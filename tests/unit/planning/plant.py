"""A synthetic plant for replanning, and the clairvoyant answer: steps and transitions with costs that are known, and
the best sequence of plans by dynamic programming over steps.

The plant's step times are the planner's closed forms on the batch that was really drawn, off by a factor for each
stage that the policy must learn, with noise; its prices of transitions are figures of its own. So scenarios judge the
logic of detection and gate, not the estimate (the simulator does).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec
import numpy as np

from libra.core.commands import ApplyPlan, Command, Switch
from libra.core.events import (
    AllocationChanged,
    Event,
    PipelineSpec,
    PlannerTick,
    RunStart,
    StepEnd,
    TrajectoryEnd,
    TrajectoryStart,
)
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, InstanceStatus, Plan
from libra.core.policy import ComposedPolicy
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.telemetry import WINDOW_STEPS, Finished, Statistics
from libra.cost.rollout import Pace
from libra.planning.estimate import Demand, Estimator
from libra.planning.search import JointPlanner, hybrid_states

BATCH, GROUP = 256, 16
PIPELINE = PipelineSpec("async", 2)
KNOWN, OFF = (1.0, 1.0), (1.25, 0.85)
"""True over estimated rollout and training time: the estimate is right, or telemetry has to teach it."""
NOISE = 0.03
"""Deviation of the log of a stage's time from step to step."""
SYNC_S = 2.0
REGROUP_S, START_S, SIDES_S = 60.0, 70.0, 12.0
"""A refresh; the trainer changes its layout; an engine starts; a hybrid replica changes sides (round figures)."""


@dataclass(frozen=True)
class Regime:
    """Lognormal lengths with half of the variance of their log between prompts; `tool_s` a turn of 350 tokens."""

    mean_tok: float
    tool_s: float
    sigma: float = 0.6

    def batch(self, rng: np.random.Generator, num: int = BATCH) -> tuple[Finished, ...]:
        deviation = self.sigma / np.sqrt(2)
        logs = rng.normal(0, deviation, num // GROUP).repeat(GROUP) + rng.normal(0, deviation, num)
        totals = np.clip(self.mean_tok * np.exp(logs - self.sigma**2 / 2), 600, 40960)
        return tuple(self._row(int(total)) for total in totals)

    def _row(self, total_tok: int) -> Finished:
        generated = max(1, int((total_tok - 500) * 0.6))
        turns = max(1, generated // 350)
        return Finished(500, generated, total_tok - 500 - generated, turns, self.tool_s * (turns - 1))


MIDDLE, LONG, LONGEST, WAITING = Regime(6000, 1.0), Regime(14000, 1.0), Regime(20000, 1.0), Regime(2000, 20.0)
"""The second and third want more GPUs for their caches; the last waits for tools."""
Scenario = Callable[[int], Regime]


class Silent:
    """A router that nobody asks."""

    def on(self, event: Event) -> Sequence[Command]:
        return ()


@dataclass
class Outcome:
    """What a policy did: the plan and the true cost of each step, stalls included, and the transitions."""

    plans: list[Plan] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    stalls: list[tuple[int, float]] = field(default_factory=list)
    """Step before which a transition was accepted, and what it cost."""
    changes: tuple[int, ...] = ()

    @property
    def total_s(self) -> float:
        return sum(self.step_s) + sum(stall_s for _, stall_s in self.stalls)


def stall_s(before: Plan, after: Plan) -> float:
    """What the plant charges for a transition, by what differs; instances are known by their sizes."""
    sizes = [[i.tp for i in plan.instances] for plan in (before, after)]
    fresh = sum(tp * max(0, sizes[1].count(tp) - sizes[0].count(tp)) for tp in set(sizes[1]))
    moved = len(set(before.hybrid_training) ^ set(after.hybrid_training))
    return max(REGROUP_S * (before.train != after.train), START_S * fresh / after.rollout_gpus, SIDES_S * (moved > 0))


def applied(plan: Plan) -> Allocation:
    lent = set(plan.hybrid_training)
    statuses = tuple(
        InstanceStatus(i.id, i.tp, i.bucket, "training" if i.hybrid in lent else "up", i.hybrid) for i in plan.instances
    )
    dp = plan.train.dp + len(lent)
    return Allocation(plan.train, dp, statuses, plan.bounds_tok, plan.hybrid_training, plan.colocated)


def switched(plan: Plan, command: Switch) -> Plan:
    training = set(plan.hybrid_training)
    for move in command.moves:
        training = training | {move.hybrid} if move.to == "train" else training - {move.hybrid}
    return msgspec.structs.replace(plan, hybrid_training=tuple(sorted(training)))


class Plant:
    """`scenario(step)` names the regime of each step. Draws are by seed and step, whatever the policy does.

    `off` is by how much the estimate is wrong. The profile is as large as the telemetry window.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: Model,
        scenario: Scenario,
        num_steps: int,
        seed: int,
        off: tuple[float, float] = OFF,
    ) -> None:
        self.off = off
        self.planner = JointPlanner(cluster, model, hybrid_replicas=2)
        self.estimator = Estimator(cluster, model)
        self.scenario, self.num_steps = scenario, num_steps
        rng = np.random.default_rng([seed, 0])
        profile = tuple(map(trajectory, scenario(0).batch(rng, WINDOW_STEPS * BATCH)))
        self.run_start = RunStart(
            0.0, cluster.name, model.name, PIPELINE, BATCH, GROUP, num_steps, model.max_context_tok, profile
        )
        draws = [np.random.default_rng([seed, 1, step]) for step in range(num_steps)]
        self.batches = [scenario(step).batch(draw) for step, draw in enumerate(draws)]
        self.noise = [np.exp(draw.normal(0, NOISE, 2)) for draw in draws]
        self.demands = [self._demand(batch) for batch in self.batches]

    def _demand(self, rows: tuple[Finished, ...]) -> Demand:
        return replace(self.estimator.demand(Statistics(self.run_start, rows), None), sync_s=SYNC_S)

    def stages_s(self, plan: Plan, step: int) -> tuple[float, float, float]:
        """True seconds of rollout with the training that its chain of versions holds, of training and of sync. Each
        stage is off by itself; the pipeline that joins them is the estimate's."""
        demand, noise = self.demands[step], self.noise[step]
        train_s = self.estimator.estimate(plan, demand).train_s * self.off[1] * noise[1]
        slower, pace = self.off[0] * noise[0], self.estimator.rollout_pace(demand, self.estimator.serving(plan))
        joined = self.estimator.combine(demand, Pace(pace.work_s * slower, pace.life_s * slower), train_s)
        return joined.rollout_s, train_s, SYNC_S

    def true_s(self, plan: Plan, step: int) -> float:
        rollout_s, train_s, sync_s = self.stages_s(plan, step)
        return max(rollout_s, train_s) + sync_s

    def drive(self, policy: ComposedPolicy) -> Outcome:
        """Run the policy over the scenario."""
        outcome, now_s = Outcome(), 0.0
        (first,) = policy.decide(self.run_start)
        plan = first.plan
        policy.decide(AllocationChanged(0.0, applied(plan), "plan"))
        for step in range(self.num_steps):
            self._report_trajectories(policy, step, now_s)
            rollout_s, train_s, sync_s = self.stages_s(plan, step)
            step_s = max(rollout_s, train_s) + sync_s
            now_s += step_s
            outcome.plans.append(plan)
            outcome.step_s.append(step_s)
            waited_s = max(0.0, rollout_s - train_s)
            tok = sum(row.total_tok for row in self.batches[step])
            dp = plan.train.dp + len(plan.hybrid_training)
            policy.decide(StepEnd(now_s, step, waited_s, train_s, sync_s, step_s, tok, plan.train, dp))
            for command in policy.decide(PlannerTick(now_s, step, applied(plan))):
                after = command.plan if isinstance(command, ApplyPlan) else switched(plan, command)
                outcome.stalls.append((step + 1, stall_s(plan, after)))
                now_s += outcome.stalls[-1][1]
                cause = "plan" if isinstance(command, ApplyPlan) else "switch"
                policy.decide(AllocationChanged(now_s, applied(after), cause))
                plan = after
        outcome.changes = policy.statistics().changes
        return outcome

    def _report_trajectories(self, policy: ComposedPolicy, step: int, now_s: float) -> None:
        for at, row in enumerate(self.batches[step]):
            number = step * BATCH + at
            policy.decide(TrajectoryStart(now_s, number, "p", 0, 0, row.prompt_tok, step))
            policy.decide(
                TrajectoryEnd(
                    now_s, number, 0, "completed", row.generated_tok, row.total_tok, row.num_turns, row.tool_s
                )
            )

    def plans_for(self, regimes: Sequence[Regime]) -> list[Plan]:
        """The planner's answer to a large sample of each regime, in every state of its hybrid pool."""
        plans: list[Plan] = []
        for regime in regimes:
            rows = regime.batch(np.random.default_rng(7), 16 * BATCH)
            asked = Statistics(self.run_start, rows)
            plan = self.planner.plan(asked, None)
            plans += hybrid_states(self.estimator, self.estimator.demand(asked, None), plan)
        return plans

    def worth_s(self, outcome: Outcome, step: int) -> float:
        """What the transition before `step` truly saved until the next one or the end, less its price."""
        moved = [at for at, _ in outcome.stalls]
        until = min((at for at in moved if at > step), default=self.num_steps)
        before, after = outcome.plans[step - 1], outcome.plans[min(step, self.num_steps - 1)]
        saved_s = sum(self.true_s(before, at) - self.true_s(after, at) for at in range(step, until))
        return saved_s - sum(price for at, price in outcome.stalls if at == step)

    def clairvoyant(self, plans: Sequence[Plan]) -> Outcome:
        """The cheapest of all sequences of `plans`, every draw known beforehand; it begins with any of them."""
        distinct = list({(p.train, p.instances, p.bounds_tok, p.hybrid_training): p for p in plans}.values())
        price = np.array([[stall_s(before, after) for after in distinct] for before in distinct])
        costs = np.array([[self.true_s(plan, step) for plan in distinct] for step in range(self.num_steps)])
        return best_sequence(distinct, costs, price)


def best_sequence(plans: Sequence[Plan], costs: np.ndarray, price: np.ndarray) -> Outcome:
    """Dynamic programming over steps: `costs` of shape [steps, plans], `price[a, b]` of going from `a` to `b`."""
    best, came = costs[0], []
    for row in costs[1:]:
        through = best[:, None] + price
        came.append(through.argmin(axis=0))
        best = through.min(axis=0) + row
    path = [int(best.argmin())]
    for origin in reversed(came):
        path.append(int(origin[path[-1]]))
    path.reverse()
    moves = [(at + 1, float(price[a, b])) for at, (a, b) in enumerate(pairwise(path)) if a != b]
    return Outcome([plans[at] for at in path], [float(row[at]) for row, at in zip(costs, path, strict=True)], moves)


def trajectory(row: Finished) -> Trajectory:
    """A profile's trajectory of those lengths, tools' payloads and times spread evenly."""
    gaps = max(1, row.num_turns - 1)
    turns = []
    for at in range(row.num_turns):
        generated = row.generated_tok * (at + 1) // row.num_turns - row.generated_tok * at // row.num_turns
        observed = row.observed_tok * (at + 1) // gaps - row.observed_tok * at // gaps
        is_last = at == row.num_turns - 1
        turns.append(Turn(generated, None if is_last else ToolReturn("tool", observed, latency_s=row.tool_s / gaps)))
    return Trajectory("p", 0, 0, row.prompt_tok, tuple(turns))
