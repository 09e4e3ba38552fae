from __future__ import annotations

import msgspec
import pytest

from libra.core.hardware import Cluster, Model
from libra.core.plan import Estimate, InstanceSpec, Plan, TrainLayout
from libra.planning.estimate import Estimator, plan_of
from libra.planning.layout import Pool, RolloutLayout

CORE = TrainLayout(tp=4, dp=4)


@pytest.fixture
def there() -> Plan:
    return Plan(CORE, tuple(InstanceSpec(i, 4, hybrid=i if i < 2 else None) for i in range(8)), (40960,))


def test_a_hybrid_in_training_speeds_training_and_slows_rollout(
    cluster: Cluster, model: Model, statistics, there: Plan
) -> None:
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(2048), None)
    serving = estimator.estimate(there, demand)
    lent = estimator.estimate(msgspec.structs.replace(there, hybrid_training=(0, 1)), demand)
    assert lent.train_s < serving.train_s
    assert lent.rollout_s > serving.rollout_s


def test_an_applied_plan_is_read_back(applied, there: Plan) -> None:
    assert plan_of(applied(there)) == there


def test_rollout_learns_from_steps_of_this_layout_only(
    cluster: Cluster, model: Model, statistics, applied, step_end, there: Plan
) -> None:
    estimator = Estimator(cluster, model)
    base = estimator.demand(statistics(), None)
    expected_s = estimator.estimate(there, base).rollout_s
    twice = tuple(step_end(i, 2 * expected_s, 1.0, CORE) for i in range(8))
    learned = estimator.demand(statistics(steps=twice), applied(there)).correction
    assert learned.rollout == pytest.approx(2.0, rel=0.06)
    other = tuple(step_end(i, 2 * expected_s, 1.0, TrainLayout(tp=8, dp=3)) for i in range(8))
    assert estimator.demand(statistics(steps=other), applied(there)).correction.rollout == 1.0


def test_a_correction_never_beats_the_hardware(
    cluster: Cluster, model: Model, statistics, applied, step_end, there: Plan
) -> None:
    estimator = Estimator(cluster, model)
    absurd = tuple(step_end(i, 100.0, 1e-3, CORE) for i in range(8))
    demand = estimator.demand(statistics(2048, steps=absurd), applied(there))
    time = estimator.raw_train(demand, CORE, CORE.dp)
    assert estimator.train_s(demand, time) >= time.floor_s


def test_the_slowest_bucket_is_the_makespan(cluster: Cluster, model: Model, statistics) -> None:
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(48), None)
    low, high = Pool(1, 8, 0, 24), Pool(8, 2, 24, 48)
    each = [estimator.raw_rollout_s(demand, RolloutLayout((pool,))) for pool in (low, high)]
    assert estimator.raw_rollout_s(demand, RolloutLayout((low, high))) == max(each)


def test_staleness_zero_serialises_the_stages(cluster: Cluster, model: Model, statistics) -> None:
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(kind="async", staleness=0), None)
    assert estimator.combine(demand, 10.0, 4.0) == Estimate(10.0, 4.0, 14.0 + demand.sync_s)
