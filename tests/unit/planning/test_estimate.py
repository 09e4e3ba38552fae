from __future__ import annotations

import msgspec
import numpy as np
import pytest

from libra.core.hardware import Cluster, Model
from libra.core.plan import Estimate, InstanceSpec, Plan, TrainLayout
from libra.core.policy import Finished
from libra.cost.rollout import Pace
from libra.planning.estimate import Estimator, least_steady_step_s, plan_of, steady_step_s
from libra.planning.layout import Bucket, Pool, RolloutLayout

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


@pytest.mark.parametrize(
    ("kind", "staleness"), [("barrier", 1), ("async", 0), ("async", 1), ("async", 3)], ids=lambda value: str(value)
)
def test_steps_of_rollout_half_as_fast_again_teach_that_factor(
    cluster: Cluster, model: Model, statistics, applied, step_end, there: Plan, kind: str, staleness: int
) -> None:
    """Whatever else a step of the pipeline holds: an asynchronous one that waits for a long request holds training."""
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(kind=kind, staleness=staleness), None)
    pace = estimator.rollout_pace(demand, estimator.serving(there))
    train_s = estimator.estimate(there, demand).train_s
    truth = estimator.combine(demand, Pace(1.5 * pace.work_s, 1.5 * pace.life_s), train_s)
    shown_s = truth.rollout_s if kind == "barrier" else truth.step_s - demand.sync_s - train_s
    step = msgspec.structs.replace(
        step_end(0, shown_s, train_s, CORE),
        sync_s=demand.sync_s,
        step_s=truth.step_s,
        trained_tok=int(demand.train.total_tok),
    )
    steps = tuple(msgspec.structs.replace(step, step=at) for at in range(30))
    learned = estimator.demand(statistics(kind=kind, staleness=staleness, steps=steps), applied(there)).correction
    assert learned.rollout == pytest.approx(1.5, rel=0.01)
    assert learned.train == pytest.approx(1.0, rel=0.01)


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


def pace(*work_s: float, life_s: float = 0.0) -> Pace:
    return Pace(np.array(work_s), np.full(len(work_s), life_s))


def test_staleness_zero_serialises_the_stages(cluster: Cluster, model: Model, statistics) -> None:
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(kind="async", staleness=0), None)
    assert estimator.combine(demand, pace(8.0, 12.0), 4.0) == Estimate(10.0, 4.0, 14.0 + demand.sync_s)


def test_a_barrier_waits_for_the_slower_stage_of_every_batch(cluster: Cluster, model: Model, statistics) -> None:
    """Batches of 2 and 10 s beside 6 s of training take 6 and 10: more than the mean of either stage."""
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(), None)
    assert estimator.combine(demand, pace(2.0, 10.0), 6.0) == Estimate(6.0, 6.0, 8.0 + demand.sync_s)


def test_eta_plus_one_steps_hold_the_last_request_training_and_sync(cluster: Cluster, model: Model, statistics) -> None:
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(kind="async", staleness=1), None)
    expected = estimator.combine(demand, pace(5.0, life_s=40.0), 10.0)
    assert expected.step_s == pytest.approx((40.0 + 10.0 + demand.sync_s) / 2)
    assert estimator.combine(demand, pace(5.0, life_s=4.0), 10.0).step_s == pytest.approx(10.0 + demand.sync_s)


def test_a_layout_costs_the_mean_of_its_batches_not_the_batch_of_their_mean(
    cluster: Cluster, model: Model, statistics
) -> None:
    """Eight batches, of which one holds all long requests: seven wait for nothing."""
    short, long = Finished(100, 900, 0, 1, 0.0), Finished(100, 19_900, 0, 1, 0.0)
    layout = RolloutLayout((Pool(1, 8, 0, 32),))

    def seconds(*finished: Finished) -> float:
        estimator = Estimator(cluster, model)
        asked = msgspec.structs.replace(statistics(32), finished=finished)
        return estimator.raw_rollout_s(estimator.demand(asked, None), layout)

    uneven = seconds(*[long] * 32, *[short] * 224)
    assert uneven == pytest.approx(seconds(*[long] * 32) / 8 + seconds(*[short] * 32) * 7 / 8)
    assert uneven < 0.25 * seconds(*([long] * 4 + [short] * 28) * 8)


def test_slow_tools_of_short_requests_are_waited_for(cluster: Cluster, model: Model, statistics) -> None:
    """The longest in tokens is not the last: a short one has a tool call of 1,000 s."""
    estimator = Estimator(cluster, model)
    rows = (*[Finished(100, 2000, 0, 2, 1.0)] * 31, Finished(100, 100, 0, 2, 1000.0))
    asked = msgspec.structs.replace(statistics(32), finished=rows * 8)
    layout = RolloutLayout((Pool(2, 16, 0, 32),))
    assert estimator.raw_rollout_s(estimator.demand(asked, None), layout) > 1000.0


def test_an_even_life_gives_an_even_step() -> None:
    """(40 + 10 + 2) / 3 for eta 2; training alone where lives are short."""
    assert steady_step_s(np.array([40.0]), 10.0, 10.0, 2.0, 2) == pytest.approx(52.0 / 3, rel=0.02)
    assert steady_step_s(np.array([4.0]), 10.0, 10.0, 2.0, 2) == pytest.approx(12.0)


def test_no_longer_lives_paces_or_trainings_bring_a_steady_step_below_its_least() -> None:
    """The steady step itself does fall in some draws, which made a bound that plans were below."""
    rng = np.random.default_rng(0)
    num_falls = 0
    for _ in range(2000):
        lives, staleness = rng.uniform(0, 40, int(rng.integers(1, 5))), int(rng.integers(1, 5))
        pace_s, train_s, sync_s = rng.uniform(0, 10, 3)
        longer = (lives + rng.uniform(0, 30, len(lives)) * rng.integers(0, 2, len(lives)), pace_s, train_s, sync_s)
        found_s = steady_step_s(*longer, staleness)
        assert least_steady_step_s(lives, pace_s, train_s, sync_s, staleness) <= found_s * (1 + 1e-12)
        num_falls += steady_step_s(lives, pace_s, train_s, sync_s, staleness) > found_s * (1 + 1e-9)
    assert num_falls > 0


def test_uneven_lives_cost_more_than_their_mean() -> None:
    even, uneven = (steady_step_s(np.array(lives), 5.0, 5.0, 0.0, 1) for lives in ([30.0], [10.0] * 7 + [170.0]))
    assert uneven > 1.2 * even


def test_a_cap_leaves_its_places_to_the_slow_bucket(cluster: Cluster, model: Model, statistics) -> None:
    """One bucket has a small engine for many requests, the other engines to spare: live ones gather at the former."""
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(64, kind="async", staleness=3, cap=24), None)
    buckets = (Bucket(0.0, 6000.0, ((8, 8),)), Bucket(6000.0, np.inf, ((1, 4),)))
    fixed = [estimator._bucket_pace(demand, bucket).work_s.mean() for bucket in buckets]
    together = estimator.rollout_pace(demand, buckets).work_s.mean()
    assert min(fixed) < together < max(fixed)


def test_kv_that_a_refresh_drops_is_computed_again(cluster: Cluster, model: Model, statistics) -> None:
    """The same lengths without a refresh under way (a barrier) prefill less than an asynchronous stream."""
    estimator = Estimator(cluster, model)
    demand = estimator.demand(statistics(64, kind="async", staleness=4), None)
    bucket = Bucket(0.0, np.inf, ((4, 8),))
    load = estimator._alone(demand, (4, 0.0, np.inf)).load
    engine = estimator.engines[4]
    least_s = (load.generated_tok * engine.step_s(256.0) / 256 + engine.kv_s_per_tok * load.traffic_tok) / 8
    least_s = least_s + engine.prefill_s(load.prefill_tok, load.prefill_pairs) / 8
    assert (estimator._bucket_pace(demand, bucket).work_s > least_s).all()
