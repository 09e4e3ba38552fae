"""Replanning as a whole (window, detector, planner, gate, hybrid pool) against the clairvoyant sequence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product

import numpy as np
import pytest

from libra.core.hardware import Cluster, Model
from libra.core.plan import Plan, TrainLayout
from libra.core.policy import ComposedPolicy
from libra.elastic.moves import HybridPool
from libra.planning.drift import DriftDetector
from libra.planning.gate import HorizonGate
from libra.planning.search import JointPlanner
from tests.unit.planning.plant import (
    KNOWN,
    LONG,
    LONGEST,
    MIDDLE,
    OFF,
    WAITING,
    Outcome,
    Plant,
    Regime,
    Scenario,
    Silent,
    best_sequence,
)

NUM_SEEDS = 3
"""Also of the table in docs/replanning.md."""
NUM_STEPS, SETTLED, SHIFT = 80, 25, 40
"""The first steps teach the stages' true speeds, which is worth a move or two."""
LAG_STEPS = 15
"""After a shift, at most: four steps to its detection, five of cool-down, five to the next planner run, one spare."""
MOST_STALL_S = 140.0
"""Two transitions to reach a plan, each at most an engine start."""
HYSTERESIS = 0.05
"""Of the gate: smaller gains are left."""
SHARE = HYSTERESIS + 0.05
"""And what a repartition must gain over hybrid moves in the planner."""
FACTOR_ERROR = 0.1
"""Of the learned factor's mean over the settled steps: thrice its standard deviation between 12 seeds, 0.033."""


def libra(cluster: Cluster, model: Model) -> ComposedPolicy:
    planner = JointPlanner(cluster, model, hybrid_replicas=2)
    gate = HorizonGate(planner.estimator)
    return ComposedPolicy("libra", planner, Silent(), gate, HybridPool(), replan_every=5, detector=DriftDetector)


def at_once(before: Regime, after: Regime) -> Scenario:
    return lambda step: before if step < SHIFT else after


def swings(num_steps: int) -> Scenario:
    """Training-bound and rollout-bound in turn, for `num_steps` each."""
    return lambda step: (MIDDLE, LONG)[step // num_steps % 2]


def ramp(step: int) -> Regime:
    return Regime(2000 + 12000 * min(1.0, step / 60), 1.0)


class Compared:
    """A policy's run beside the clairvoyant's, over the plans that either the policy or the planner would choose."""

    def __init__(self, cluster: Cluster, model: Model, scenario: Scenario, seed: int, off: tuple[float, float]) -> None:
        self.plant = Plant(cluster, model, scenario, NUM_STEPS, seed, off)
        self.policy = libra(cluster, model)
        self.libra: Outcome = self.plant.drive(self.policy)
        regimes = list(dict.fromkeys(scenario(step) for step in range(0, NUM_STEPS, 10)))
        self.best: Outcome = self.plant.clairvoyant([*self.plant.plans_for(regimes), *self.libra.plans])

    @property
    def regret(self) -> float:
        return self.libra.total_s / self.best.total_s - 1

    def rollout_factor(self, since: int) -> float:
        """Mean of what the planner believed rollout to be slower by than estimated."""
        learned = self.policy.planner.estimator._factors(self.plant.run_start)
        return float(np.mean([factor for step, factor in learned.items() if step >= since]))

    def moves(self, since: int) -> list[int]:
        return [step for step, _ in self.libra.stalls if step >= since]

    def allowed_s(self, shifts: tuple[int, ...]) -> float:
        """Stated bound of the regret: gains below the hysteresis are left; after the start and after each shift the
        plan of before stays for `LAG_STEPS`, and two transitions are paid."""
        lag_s = sum(
            max(0.0, self.plant.true_s(self.libra.plans[shift], step) - self.best.step_s[step])
            for shift in (0, *shifts)
            for step in range(shift, min(NUM_STEPS, shift + LAG_STEPS))
        )
        return sum(self.best.step_s) * SHARE / (1 - SHARE) + lag_s + MOST_STALL_S * (1 + len(shifts))

    def check(self, shifts: tuple[int, ...]) -> None:
        assert 0 <= self.libra.total_s - self.best.total_s <= self.allowed_s(shifts)


@pytest.fixture
def compare(cluster: Cluster, model: Model) -> Callable[..., list[Compared]]:
    """Runs of a scenario with that many seeds."""

    def run(scenario: Scenario, num_seeds: int = NUM_SEEDS, off: tuple[float, float] = OFF) -> list[Compared]:
        return [Compared(cluster, model, scenario, seed, off) for seed in range(num_seeds)]

    return run


def summary(name: str, runs: list[Compared], since: int) -> str:
    regrets = [run.regret for run in runs]
    moves = [len(run.moves(since)) for run in runs]
    return (
        f"replanning, {name}: {np.mean(moves):.1f} moves after step {since} (most {max(moves)}; clairvoyant "
        f"{np.mean([sum(at >= since for at, _ in run.best.stalls) for run in runs]):.1f}), regret "
        f"{np.mean(regrets):.1%} (worst {max(regrets):.1%}), {len(runs)} seeds"
    )


def test_the_clairvoyant_is_the_best_of_all_sequences() -> None:
    """Three plans, six steps: equal to the least of all 729 sequences."""
    rng = np.random.default_rng(0)
    plans = [Plan(TrainLayout(1, dp), (), (1,)) for dp in (1, 2, 3)]
    for _ in range(20):
        costs, price = rng.uniform(1, 5, (6, 3)), rng.uniform(0, 3, (3, 3)) * (1 - np.eye(3))
        totals = [
            sum(costs[at, plan] for at, plan in enumerate(path)) + sum(price[a, b] for a, b in pairwise(path))
            for path in product(range(3), repeat=6)
        ]
        found = best_sequence(plans, costs, price)
        assert found.total_s == pytest.approx(min(totals))


@pytest.mark.parametrize("regime", [MIDDLE, LONG, WAITING], ids=["middle", "long", "waiting"])
def test_noise_moves_nothing(compare, regime: Regime, record_property, request) -> None:
    """The estimate is right and the workload stands still: there is nothing to do but what a better sample teaches."""
    runs = compare(lambda _: regime, off=KNOWN)
    record_property("report", summary(f"noise, {request.node.callspec.id}", runs, 0))
    assert np.mean([run.regret for run in runs]) <= HYSTERESIS
    for run in runs:
        assert len(run.moves(0)) <= 1
        run.check(())


def test_a_wrong_estimate_is_learned_and_then_nothing_moves(compare, record_property) -> None:
    """Rollout 25 % slower and training 15 % faster than expected, which each layout shows only a part of."""
    runs = compare(lambda _: MIDDLE)
    record_property("report", summary("a wrong estimate", runs, SETTLED))
    assert sum(len(run.moves(SETTLED)) for run in runs) <= len(runs)
    assert np.mean([run.regret for run in runs]) <= HYSTERESIS
    for run in runs:
        assert run.rollout_factor(SETTLED) == pytest.approx(OFF[0], abs=FACTOR_ERROR)
        run.check(())


@pytest.mark.slow
def test_moves_under_a_wrong_estimate_are_worth_their_price(compare, record_property) -> None:
    """Taken together: each is taken at 95 %, on the batches of one window, and single ones lose."""
    runs = compare(lambda _: MIDDLE, num_seeds=12)
    record_property("report", summary("a wrong estimate", runs, SETTLED))
    assert sum(run.plant.worth_s(run.libra, step) for run in runs for step in run.moves(0)) > 0


@pytest.mark.parametrize(
    ("before", "after", "off", "slow"),
    [(MIDDLE, LONG, OFF, "rollout"), (LONGEST, MIDDLE, (1.0, 1.5), "training")],
    ids=["rollout", "training"],
)
def test_fault_11_a_step_is_followed_whichever_stage_becomes_the_bottleneck(
    compare, before: Regime, after: Regime, off: tuple[float, float], slow: str, record_property
) -> None:
    """Soon, in few moves that are worth their price."""
    runs = compare(at_once(before, after), off=off)
    record_property("report", summary(f"step that leaves {slow} behind", runs, SHIFT))
    assert np.mean([run.regret for run in runs]) <= SHARE
    for run in runs:
        stages = np.array([run.plant.stages_s(run.libra.plans[SHIFT], step)[:2] for step in range(SHIFT, NUM_STEPS)])
        assert ("rollout", "training")[int(stages.mean(axis=0).argmax())] == slow
        moves = run.moves(SHIFT)
        assert 1 <= len(moves) <= 3 and moves[0] <= SHIFT + LAG_STEPS
        assert sum(run.plant.worth_s(run.libra, step) for step in moves) > 0
        run.check((SHIFT,))


@pytest.mark.slow
def test_a_ramp_is_followed_without_a_move_at_every_tick(compare, record_property) -> None:
    runs = compare(ramp)
    record_property("report", summary("ramp over 60 steps", runs, SETTLED))
    assert np.mean([run.regret for run in runs]) <= SHARE
    for run in runs:
        run.check((20, 40))
        assert 1 <= len(run.moves(0)) <= 8


@pytest.mark.parametrize(("num_steps", "most"), [(3, 1), (40, 4)])
def test_fault_11_oscillation_is_followed_only_where_it_pays(
    compare, num_steps: int, most: int, record_property
) -> None:
    """Three steps of a regime do not pay for a move, forty do."""
    runs = compare(swings(num_steps))
    record_property("report", summary(f"swings of {num_steps} steps", runs, SETTLED))
    assert np.mean([run.regret for run in runs]) <= SHARE
    for run in runs:
        assert len(run.moves(SETTLED)) <= most
        run.check(tuple(range(num_steps, NUM_STEPS, num_steps)) if num_steps > LAG_STEPS else ())
