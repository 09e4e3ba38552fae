from __future__ import annotations

import math

import msgspec
import pytest

from libra.core.events import StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.plan import Estimate, InstanceSpec, Plan, TrainLayout
from libra.core.telemetry import Statistics
from libra.planning.estimate import Demand, Estimator
from libra.planning.gate import AcceptChange, HorizonGate, surely_exceed
from libra.planning.search import JointPlanner

CORE = TrainLayout(tp=4, dp=4)
STEP_40 = StepEnd(0.0, 40, 0.0, 0.0, 0.0, 0.0, 0, CORE, 4)


class Trusting(HorizonGate):
    """Believes a plan's expectation, which most tests make up, for every batch."""

    def gains_s(self, candidate: Plan, current: Plan, demand: Demand, statistics: Statistics) -> list[float]:
        return [self.estimator.estimate(current, demand).step_s - candidate.expected.step_s] * 8


@pytest.fixture
def there() -> Plan:
    instances = tuple(InstanceSpec(i, 4, hybrid=i if i < 2 else None) for i in range(8))
    return Plan(CORE, instances, (40960,))


@pytest.fixture
def gate(cluster: Cluster, model: Model) -> HorizonGate:
    return Trusting(Estimator(cluster, model), prior_steps=20, cooldown_steps=5)


def promising(plan: Plan, step_s: float, **changes) -> Plan:
    return msgspec.structs.replace(plan, expected=Estimate(step_s=step_s), **changes)


def now_s(gate: HorizonGate, plan: Plan, asked, applied) -> float:
    there = applied(plan)
    return gate.estimator.estimate(plan, gate.estimator.demand(asked, there)).step_s


def price_s(gate: HorizonGate, candidate: Plan, plan: Plan, asked, applied) -> float:
    return gate.cost.of(candidate, plan, gate.estimator.demand(asked, applied(plan))).stall_s


def test_fault_11_gain_is_taken_over_the_horizon(gate: HorizonGate, there: Plan, statistics, applied) -> None:
    """A gain of 6 % of a short step is less than what a new core layout costs, but 20 steps of it are not."""
    asked = statistics(mean_tok=2000.0, sigma=0.5, tool_s=0.0)
    gain_s = 0.06 * now_s(gate, there, asked, applied)
    better = promising(there, gain_s / 0.06 - gain_s, train=TrainLayout(tp=8, dp=2))
    assert gain_s < price_s(gate, better, there, asked, applied) < 20 * gain_s
    assert gate.accepts(better, asked, applied(there))


def test_a_workload_that_keeps_changing_is_not_worth_it(gate: HorizonGate, there: Plan, statistics, applied) -> None:
    """One gain, one price, 40 steps: worth it in one regime, not where the workload changed every second step."""
    asked = statistics(mean_tok=2000.0, sigma=0.5, tool_s=0.0)
    gain_s = 0.06 * now_s(gate, there, asked, applied)
    better = promising(there, gain_s / 0.06 - gain_s, train=TrainLayout(tp=8, dp=2))
    known = msgspec.structs.replace(asked, steps=(STEP_40,))
    restless = msgspec.structs.replace(known, changes=tuple(range(2, 40, 2)))
    assert [gate.horizon_steps(each, 40) for each in (known, restless)] == [61, 61 / 20]
    assert not gate.accepts(better, restless, applied(there))
    assert gate.accepts(better, known, applied(there))


def test_the_horizon_ends_with_the_run(gate: HorizonGate, there: Plan, statistics, applied, step_end) -> None:
    asked = statistics(mean_tok=2000.0, sigma=0.5, tool_s=0.0, num_steps=500)
    gain_s = 0.06 * now_s(gate, there, asked, applied)
    better = promising(there, gain_s / 0.06 - gain_s, train=TrainLayout(tp=8, dp=2))
    last, early = (msgspec.structs.replace(asked, steps=(step_end(at, 0.0, 0.0, CORE),)) for at in (498, 400))
    assert gate.horizon_steps(last, 498) == 1
    assert not gate.accepts(better, last, applied(there))
    assert gate.accepts(better, early, applied(there))


def test_a_gain_is_sure_by_a_one_sided_t_test() -> None:
    """Student's 95 % quantile for 7 degrees of freedom is 1.895: a mean of 1 with a deviation of 1.4 is just above."""
    shape = [-1.0, 1.0] * 4
    deviation = math.sqrt(8 / 7)

    def around(mean: float, wanted: float) -> list[float]:
        return [mean + wanted / deviation * each for each in shape]

    assert surely_exceed(around(1.0, 1.45), 0.0, 1.64) and not surely_exceed(around(1.0, 1.55), 0.0, 1.64)
    assert not surely_exceed(around(1.0, 1.45), 0.1, 1.64), "the break-even gain counts"
    assert surely_exceed([1.0, 1.0], 0.0, 1.64) and not surely_exceed([1.0, 1.0], 1.0, 1.64)
    assert not surely_exceed([9.0], 0.0, 1.64) and not surely_exceed([], 0.0, 1.64)


def test_a_gain_that_the_batches_do_not_confirm_is_refused(there: Plan, statistics, applied, cluster, model) -> None:
    """A plan that promises half of the step but is what is there with another bound."""
    gate, asked = HorizonGate(Estimator(cluster, model)), statistics()
    promised = promising(there, now_s(gate, there, asked, applied) / 2, bounds_tok=(9000, 40960))
    assert not gate.accepts(promised, asked, applied(there))
    assert len(gate.gains_s(promised, there, gate.estimator.demand(asked, applied(there)), asked)) == 8


def test_fault_11_small_gains_are_refused(gate: HorizonGate, there: Plan, statistics, applied) -> None:
    current_s = now_s(gate, there, statistics(), applied)
    assert not gate.accepts(promising(there, current_s * 0.96, hybrid_training=(0,)), statistics(), applied(there))
    assert not gate.accepts(promising(there, current_s * 1.2, hybrid_training=(0,)), statistics(), applied(there))


def test_nothing_to_change_is_not_accepted(gate: HorizonGate, there: Plan, statistics, applied) -> None:
    assert not gate.accepts(promising(there, 1.0), statistics(), applied(there))


def test_fault_11_after_a_change_there_is_a_cool_down(
    gate: HorizonGate, there: Plan, statistics, applied, step_end
) -> None:
    def accepts(step: int) -> bool:
        asked = statistics(steps=(step_end(step, 0.0, 0.0, CORE),))
        return gate.accepts(promising(there, 1.0, hybrid_training=(0,)), asked, applied(there))

    assert [step for step in range(10, 24) if accepts(step)] == [10, 15, 20]


@pytest.mark.parametrize("direction", ["toward training", "toward rollout"])
def test_fault_11_both_directions_trigger(cluster: Cluster, model: Model, statistics, applied, direction: str) -> None:
    planner = JointPlanner(cluster, model, hybrid_replicas=4, min_repartition_share=0.5)
    gate = HorizonGate(planner.estimator)
    common = {"sigma": 0.5, "tool_s": 0.0, "kind": "async", "staleness": 4}
    short, long = (statistics(512, mean_tok=tok, **common) for tok in (1500.0, 20000.0))
    first, then = (long, short) if direction == "toward training" else (short, long)
    there = planner.plan(first, None)
    candidate = planner.plan(then, applied(there))
    assert candidate.hybrid_training != there.hybrid_training
    assert gate.accepts(candidate, then, applied(there))


def test_fault_11_a_steady_workload_does_not_oscillate(cluster: Cluster, model: Model, statistics, applied) -> None:
    """Eight draws of one workload: after the first plan nothing is accepted."""
    planner = JointPlanner(cluster, model, hybrid_replicas=2)
    gate = HorizonGate(planner.estimator)
    there = planner.plan(statistics(256, seed=100), None)
    for seed in range(8):
        drawn = statistics(256, seed=seed)
        assert not gate.accepts(planner.plan(drawn, applied(there)), drawn, applied(there))


def test_accept_change_lets_everything_but_standstill_pass(there: Plan, statistics, applied) -> None:
    assert not AcceptChange().accepts(there, statistics(), applied(there))
    assert AcceptChange().accepts(msgspec.structs.replace(there, hybrid_training=(1,)), statistics(), applied(there))
    assert AcceptChange().accepts(
        msgspec.structs.replace(there, train=TrainLayout(tp=8, dp=2)), statistics(), applied(there)
    )
