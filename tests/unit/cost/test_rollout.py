from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec
from libra.core.policy import Finished
from libra.cost.engine import Engine
from libra.cost.loads import batch_loads, decline_of, interval_loads, serial_s, whole_load
from libra.cost.rates import Rates
from libra.cost.requests import batches_of, compress, part
from libra.cost.rollout import Schedule, rollout_s, schedule_of
from libra.models import load_model

CLUSTER = load_cluster("a800x48")
Q14 = load_model("qwen3-14b")
MOE = load_model("qwen3-30b-a3b")
TOGETHER = Schedule()


def engine(tp: int, model=Q14) -> Engine:
    return Engine(CLUSTER, model, tp)


def seconds(tp: int, *finished: Finished, schedule: Schedule = TOGETHER, share: float = 1.0) -> float:
    requests = compress(finished, len(finished))
    return float(rollout_s(engine(tp), requests, whole_load(engine(tp), requests), schedule, share))


@pytest.mark.parametrize("batch", [1.0, 16.0, 256.0])
def test_fault_1_doubling_tp_at_most_halves_a_decode_step(batch: float) -> None:
    steps = [float(engine(tp).step_s(batch)) for tp in (1, 2, 4, 8)]
    for one, two in pairwise(steps):
        assert one / 2 < two < one
    assert engine(8).kv_s_per_tok == pytest.approx(engine(1).kv_s_per_tok / 8)


def test_fault_1_tp8_is_bounded_by_latency_and_overheads() -> None:
    """40 layers x 2 all-reduces and 40 x 10 kernels do not shrink with TP; weights do."""
    floor = 80 * 10e-6 + 400 * 5e-6 + 1e-3
    read = engine(8).weight_read_bytes(1.0) / 8 / (2039e9 * 0.7)
    assert floor + read < engine(8).step_s(1.0) < (floor + read) * 1.01


def test_fault_4_one_long_request_costs_its_own_decode_time() -> None:
    """30,000 tokens at the floor of the datasheet: reading the weights at full bandwidth takes longer than 400 s."""
    request = Finished(0, 30_000, 0, 1, 0.0)
    unbeatable = 30_000 * engine(1).matmul_params * 2 / 2039e9
    assert unbeatable > 400
    assert seconds(1, request) > unbeatable
    requests = compress((request,), 1)
    assert seconds(1, request) == pytest.approx(float(serial_s(engine(1), requests)[0]), rel=1e-3)
    # Beside 31 short ones it still takes at least that long.
    assert seconds(1, request, *[Finished(0, 100, 0, 1, 0.0)] * 31) > unbeatable


def test_tools_count_in_series_for_their_own_request() -> None:
    plain, slow = Finished(0, 1000, 0, 5, 0.0), Finished(0, 1000, 0, 5, 60.0)
    assert seconds(8, slow) == pytest.approx(seconds(8, plain) + 60.0)


def test_fault_3_mixing_long_and_short_is_not_rewarded() -> None:
    """Additive traffic: the KV time of a set is the sum of its parts, however they are mixed."""
    mixed = compress((Finished(0, 1000, 0, 1, 0.0), Finished(0, 9000, 0, 1, 0.0)), 2)
    parts = [part(mixed, 0, 1), part(mixed, 1, 2)]
    assert mixed.sum("traffic_tok") == sum(p.sum("traffic_tok") for p in parts)


def test_concurrency_is_limited_by_the_kv_cache() -> None:
    """64 requests of 30,000 tokens: one TP1 instance holds about a quarter of their cache at a time."""
    requests = [Finished(0, 30_000, 0, 1, 0.0)] * 64
    capacity = engine(1).capacity_tok
    least_steps = 64 * 30_000**2 / 2 / capacity
    assert least_steps > 2 * 30_000
    assert seconds(1, *requests) > least_steps * float(engine(1).step_s(1.0))


def test_fault_8_a_request_above_the_capacity_is_never_served() -> None:
    assert seconds(1, Finished(0, 400_000, 0, 1, 0.0)) == np.inf
    assert np.isfinite(seconds(8, Finished(0, 400_000, 0, 1, 0.0)))


def moe(skew: float) -> Engine:
    return Engine(CLUSTER, MOE, 1, Rates(skew=skew))


def test_more_experts_are_read_at_larger_batches() -> None:
    one, many = moe(0.0).weight_read_bytes(1.0), moe(0.0).weight_read_bytes(64.0)
    assert one == pytest.approx(2 * moe(0.0).matmul_params)
    hit = 128 * (1 - (1 - 8 / 128) ** 64)
    assert many == pytest.approx(2 * (moe(0.0).matmul_params + 48 * MOE.expert_params * (hit - 8)))
    assert moe(0.0).weight_read_bytes(1e6) <= MOE.weight_bytes


def test_fewer_experts_are_read_where_some_are_popular() -> None:
    reads = [moe(skew).weight_read_bytes(32.0) for skew in (0.0, 0.5, 1.0, 2.0)]
    assert reads == sorted(reads, reverse=True)
    assert reads[-1] < 0.5 * reads[0]


@pytest.mark.parametrize("schedule", [TOGETHER, Schedule(2.0, 1)])
def test_interval_costs_equal_each_interval_on_its_own(schedule: Schedule) -> None:
    rng = np.random.default_rng(3)
    finished = [
        Finished(50, int(g), int(g) // 2, 3, float(t))
        for g, t in zip(rng.integers(1, 9000, 9), rng.uniform(0, 200, 9), strict=True)
    ]
    requests = compress(finished, 9)
    costs = rollout_s(engine(2), requests, interval_loads(engine(2), requests), schedule)
    for low in range(9):
        for high in range(low + 1, 10):
            alone = part(requests, low, high)
            expected = rollout_s(engine(2), alone, whole_load(engine(2), alone), schedule)
            assert costs[low, high] == pytest.approx(float(expected))


def test_two_equal_instances_behind_one_bucket_share_the_load() -> None:
    many = [Finished(0, 2000, 0, 1, 0.0)] * 400
    assert seconds(2, *many, share=0.5) < 0.75 * seconds(2, *many)
    one = Finished(0, 2000, 0, 1, 0.0)
    assert seconds(2, one, share=0.5) == pytest.approx(seconds(2, one))


def test_schedule_counts_live_trajectories_as_the_gate_does() -> None:
    assert schedule_of(PipelineSpec("barrier"), 32) == Schedule(1.0, None)
    assert schedule_of(PipelineSpec("async", 4), 32) == Schedule(5.0, 4)
    assert schedule_of(PipelineSpec("async", 4, 16), 32) == Schedule(0.5, 4)
    assert schedule_of(PipelineSpec("async", 0), 32) == Schedule(1.0, None)


def test_fewer_in_flight_take_longer() -> None:
    requests = [Finished(100, 3000, 500, 4, 30.0)] * 64
    times = [seconds(2, *requests, schedule=Schedule(live, 4)) for live in (5.0, 1.0, 0.5, 0.25)]
    assert times == sorted(times)
    assert times[-1] > 3 * times[0]
    assert seconds(2, *requests, schedule=Schedule(0.25)) > seconds(2, *requests)


def test_the_last_request_has_as_many_beside_it_as_a_router_that_evens_out_counts_gives_it() -> None:
    """On four instances a long request is alone among four, and beside a short one among eight."""
    long, short = Finished(0, 20_000, 0, 1, 0.0), Finished(0, 2000, 0, 1, 0.0)
    alone_s = seconds(2, long)
    assert seconds(2, long, *[short] * 3, share=0.25) == pytest.approx(alone_s)
    beside_s = seconds(2, long, *[short] * 7, share=0.25)
    # Steps with another sequence for a tenth of the time, and its reads.
    read_s = engine(2).kv_s_per_tok * 2000**2 / 2
    longer_s = 2000 * float(engine(2).step_s(2.0) - engine(2).step_s(1.0))
    assert beside_s == pytest.approx(alone_s + read_s + longer_s, rel=1e-4)


def test_a_batch_shrinks_as_its_requests_end() -> None:
    steps = [30, 10, 60]
    found = decline_of(batches_of([Finished(0, each, 0, 1, 0.0) for each in steps], 3))
    assert found.steps.tolist() == [[10, 20, 30]]
    assert found.left.tolist() == [[3, 2, 1]]
    low = batches_of([Finished(0, each, 0, 1, 0.0) for each in steps], 3).between(0, 30)
    assert (decline_of(low).steps * decline_of(low).left).sum() == 40


def test_an_expert_model_s_batch_takes_its_steps_one_by_one() -> None:
    """Against a loop over the decode steps; the mean batch would read more experts than the mean step."""
    each = Engine(CLUSTER, MOE, 2)
    finished = [Finished(0, steps, 0, 1, 0.0) for steps in range(100, 4900, 100)]
    batches = batches_of(finished, len(finished))
    load = batch_loads(each, batches)
    own_s = each.kv_s_per_tok * batches.requests.sum("traffic_tok")
    looped_s = sum(float(each.step_s(float(sum(f.generated_tok > at for f in finished)))) for at in range(0, 4800, 100))
    found_s = float(rollout_s(each, batches.requests, load, TOGETHER)[0])
    assert found_s == pytest.approx(100 * looped_s + own_s, rel=2e-3)
    mean_s = float(rollout_s(each, batches.requests, replace(load, decline=None), TOGETHER)[0])
    assert mean_s > 1.04 * found_s


def test_a_request_that_waits_for_tools_meets_the_others_only_while_it_decodes() -> None:
    """D = decode + others * D / (D + tool): between none of the others' work and all of it, and more than the share of
    an undisturbed life, since the others make the decoding part longer."""
    each = engine(1)
    own = Finished(0, 9000, 0, 10, 60.0)
    others = [Finished(0, 3000, 0, 1, 0.0)] * 40
    steps, beside = 9000 + 10, (9000 + 10 + 40 * 3000) / 9010
    alone_s = each.kv_s_per_tok * 9000 * 4500 + steps * float(each.step_s(beside))
    work_s = each.kv_s_per_tok * 40 * 3000 * 1500
    decode_s = seconds(1, own, *others) - 60.0
    assert decode_s == pytest.approx(alone_s + work_s * decode_s / (decode_s + 60.0), rel=0.01)
    assert decode_s > alone_s + work_s * alone_s / (alone_s + 60.0)
