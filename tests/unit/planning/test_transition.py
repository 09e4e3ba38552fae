"""Prices of transitions against hand-computed closed forms."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from libra.core.hardware import Cluster, Model
from libra.core.plan import Estimate, InstanceSpec, Plan, TrainLayout
from libra.core.telemetry import Started, Statistics
from libra.cost.calibration import SMOOTHING
from libra.planning.estimate import Demand, Estimator
from libra.planning.transition import ENGINE_START_S, REBUILD_S, STATE_BYTES, WAKE_S, Transition, TransitionCost

CORE = TrainLayout(tp=4, dp=4)
Ask = Callable[..., Statistics]
Change = Callable[..., Transition]


@pytest.fixture
def there() -> Plan:
    """Eight engines of four GPUs in two buckets; engines 0 and 1 are hybrid replicas."""
    engines = tuple(InstanceSpec(i, 4, bucket=i // 4, hybrid=i if i < 2 else None) for i in range(8))
    return Plan(CORE, engines, (8000, 40960))


@pytest.fixture
def cost(cluster: Cluster, model: Model) -> TransitionCost:
    return TransitionCost(Estimator(cluster, model))


@pytest.fixture
def demand(cost: TransitionCost, statistics: Ask) -> Callable[..., Demand]:
    return lambda **asked: cost.estimator.demand(statistics(**asked), None)


def but(plan: Plan, **changes) -> Plan:
    return msgspec.structs.replace(plan, **changes)


def restarted(plan: Plan, ids: tuple[int, ...]) -> Plan:
    """Those engines are replaced by new ones of the same size."""
    return but(plan, instances=tuple(but(i, id=100 + i.id) if i.id in ids else i for i in plan.instances))


def state_s(model: Model) -> float:
    """14 bytes a parameter over a node's 22 GB/s, of which nine tenths are sustained."""
    return model.num_params * STATE_BYTES / (22e9 * 0.9)


def test_a_standstill_and_new_bounds_cost_nothing(cost: TransitionCost, there: Plan, demand) -> None:
    assert cost.of(there, there, demand()) == Transition()
    assert cost.of(but(there, bounds_tok=(9000, 40960)), there, demand()) == Transition()


def test_engines_that_start_cost_their_bucket_its_share(cost: TransitionCost, there: Plan, demand) -> None:
    asked = demand()
    up_s = ENGINE_START_S + asked.sync_s
    one, two, apart = (cost.of(restarted(there, ids), there, asked) for ids in ((7,), (6, 7), (0, 7)))
    assert one.up_s == up_s and one.rollout_s == pytest.approx(up_s / 4)
    assert two.rollout_s == pytest.approx(up_s / 2)
    assert apart.rollout_s == pytest.approx(up_s / 4), "the worst bucket counts"
    assert [each.gpu_s for each in (one, two, apart)] == pytest.approx([4 * up_s, 8 * up_s, 8 * up_s])
    assert one.train_s == one.drain_s == one.reprefill_s == 0


def test_a_new_training_layout_rebuilds_groups_and_moves_the_state(
    cost: TransitionCost, there: Plan, demand, model: Model
) -> None:
    found = cost.of(but(there, train=TrainLayout(tp=8, dp=2)), there, demand())
    assert found.state_s == found.train_s == pytest.approx(REBUILD_S + state_s(model))
    assert found.rollout_s == 0 and found.gpu_s == pytest.approx(16 * found.state_s)


def test_a_hybrid_replica_that_joins_costs_training_its_part_only(
    cost: TransitionCost, there: Plan, demand, model: Model
) -> None:
    found = cost.of(but(there, hybrid_training=(0,)), there, demand())
    assert found.state_s == pytest.approx(WAKE_S + state_s(model))
    assert found.train_s == pytest.approx(found.state_s / 5)
    assert found.rollout_s == 0 and found.gpu_s == pytest.approx(4 * found.state_s)


def test_one_that_comes_back_wakes_and_gets_the_weights(cost: TransitionCost, there: Plan, demand) -> None:
    asked = demand()
    found = cost.of(there, but(there, hybrid_training=(0,)), asked)
    assert found.up_s == WAKE_S + asked.sync_s
    assert found.rollout_s == pytest.approx(found.up_s / 4) and found.train_s == 0


def test_what_a_stage_loses_in_the_shade_of_the_other_is_free(cost: TransitionCost, there: Plan, demand) -> None:
    """40 s of regrouping in a step whose rollout takes 30 s longer than training: 10 s are seen, in serial all 40."""
    moved = but(there, train=TrainLayout(tp=8, dp=2))
    lost_s = cost.of(moved, there, demand()).train_s
    in_shade = but(moved, expected=Estimate(rollout_s=100.0 + lost_s - 10.0, train_s=100.0, step_s=200.0))
    assert cost.of(in_shade, there, demand()).stall_s == pytest.approx(10.0)
    assert cost.of(in_shade, there, demand(kind="colocated")).stall_s == pytest.approx(lost_s)
    assert cost.of(in_shade, there, demand(kind="async", staleness=0)).stall_s > lost_s * 0.99
    assert cost.of(but(in_shade, expected=Estimate(500.0, 100.0, 500.0)), there, demand()).stall_s == 0


def test_turns_in_flight_drain_and_contexts_are_prefilled_again(cost: TransitionCost, there: Plan, demand) -> None:
    """Behind a barrier nothing is in flight. Equal one-turn requests of 8,500 generated tokens: 24 of the 96 live ones
    on two of the eight engines; H_12 turns' times until the last one has ended."""
    asked = demand(batch=48, equal_tok=9000, kind="async", staleness=1)
    found = cost.of(restarted(there, (6, 7)), there, asked)
    engine, context_tok = cost.estimator.engines[4], 500 + 8500 / 2
    step_s = float(engine.step_s(12.0)) + 12 * context_tok * engine.kv_s_per_tok
    assert found.drain_s == pytest.approx(8500 * step_s * sum(1 / n for n in range(1, 13)))
    assert found.reprefill_s == pytest.approx(24 * float(engine.prefill_s(context_tok, context_tok**2 / 2)) / 8)
    assert found.up_s == pytest.approx(found.drain_s + ENGINE_START_S + asked.sync_s)
    assert found.rollout_s == pytest.approx(found.up_s / 2 + found.reprefill_s)
    behind = cost.of(restarted(there, (6, 7)), there, demand(batch=48, equal_tok=9000))
    assert behind.drain_s == behind.reprefill_s == 0


def test_what_earlier_transitions_took_corrects_their_own_kind(cost: TransitionCost, there: Plan, demand) -> None:
    asked = demand()
    cold_s, lent = ENGINE_START_S + asked.sync_s, but(there, hybrid_training=(0,))
    slow = (Started("plan", 2 * cold_s),)
    assert cost.of(restarted(there, (7,)), there, asked, slow).up_s == pytest.approx(cold_s * (1 + SMOOTHING))
    assert cost.of(there, lent, asked, slow).up_s == WAKE_S + asked.sync_s
    always = (Started("plan", 2 * cold_s),) * 30
    assert cost.of(restarted(there, (7,)), there, asked, always).up_s == pytest.approx(2 * cold_s, rel=1e-3)
