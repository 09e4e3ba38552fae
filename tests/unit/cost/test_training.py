from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from libra.clusters import load_cluster
from libra.core.plan import TrainLayout
from libra.cost.communication import LINK_EFFICIENCY, link_bytes_s
from libra.cost.rates import Rates
from libra.cost.training import (
    TrainLoad,
    context_s,
    forward_flops,
    forward_stream_bytes,
    idle_ratio,
    num_micro_batches,
    pipeline_s,
    stage_time,
    tensor_s,
    train_time,
)
from libra.models import load_model

CLUSTER = load_cluster("a800x48")
LOAD = TrainLoad(num=512, total_tok=512 * 8000.0, square_tok=512 * 8000.0**2, longest_tok=8000.0)
MODELS = ["qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-30b-a3b"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", [TrainLayout(tp=4, dp=4), TrainLayout(tp=8, dp=6), TrainLayout(tp=2, pp=2, dp=4)])
def test_fault_5_never_above_peak(name: str, layout: TrainLayout) -> None:
    model = load_model(name)
    time = train_time(CLUSTER, model, layout, LOAD)
    useful = 3 * forward_flops(model, LOAD.total_tok, LOAD.square_tok)
    assert useful / time.total_s < 312e12 * layout.num_gpus
    assert time.floor_s < time.total_s


def test_fault_5_models_differ_as_their_weights_do() -> None:
    small, large = (train_time(CLUSTER, load_model(n), TrainLayout(tp=4, dp=4), LOAD).total_s for n in MODELS[:2])
    assert 1.5 < large / small < 2.5


def test_forward_flops_by_hand() -> None:
    model = load_model("qwen3-14b")
    linear = 2 * (model.num_params - model.vocab * model.hidden)
    assert forward_flops(model, 1, 0) == linear
    # Causal attention of one sequence of s tokens: 2 matmuls x 2 FLOPs x s^2 / 2 x width.
    assert forward_flops(model, 0, 100.0**2) == 40 * 2 * 2 * 100**2 / 2 * 40 * 128


def test_more_replicas_are_faster_and_a_hybrid_counts_as_one() -> None:
    model = load_model("qwen3-14b")
    core = TrainLayout(tp=4, dp=4)
    times = [train_time(CLUSTER, model, core, LOAD, dp).work_s for dp in (4, 5, 8)]
    assert times[0] / times[1] == pytest.approx(5 / 4, rel=1e-4)
    assert times[0] / times[2] == pytest.approx(2, rel=1e-4)


def test_the_longest_sequence_bounds_a_replica() -> None:
    model = load_model("qwen3-14b")
    load = TrainLoad(num=8, total_tok=8 * 1000.0 + 39_000, square_tok=8e6 + 39_000.0**2, longest_tok=40_000.0)
    few, many = (train_time(CLUSTER, model, TrainLayout(tp=4, dp=dp), load).work_s for dp in (2, 8))
    assert few == pytest.approx(many)


def test_bubble_is_the_textbook_one() -> None:
    layout = TrainLayout(tp=2, pp=4, dp=2)
    load = TrainLoad(64, 10 * 2 * 40960.0, 1.0, 8000.0)
    assert num_micro_batches(load, layout, 2) == 10
    assert train_time(CLUSTER, load_model("qwen3-14b"), layout, load).bubble == pytest.approx(3 / 13)


def test_no_more_micro_batches_than_sequences() -> None:
    assert num_micro_batches(TrainLoad(2, 1e6, 1.0, 1.0), TrainLayout(tp=1, dp=2), 2) == 1


def test_interleaving_divides_the_bubble_and_multiplies_the_sends() -> None:
    """Narayanan et al. 2021, section 2.2: bubble over work is (p - 1) / (v m), communication grows v times."""
    model = load_model("qwen3-14b")
    load = TrainLoad(64, 8 * 2 * 40960.0, 1.0, 8000.0)
    assert idle_ratio(4, 1, 8) == 3 / 8
    assert idle_ratio(4, 5, 8) == 3 / 40
    layouts = [TrainLayout(tp=2, pp=4, dp=2, vpp=vpp) for vpp in (1, 5)]
    assert [num_micro_batches(load, each, 2) for each in layouts] == [8, 8]
    one, five = (pipeline_s(CLUSTER, model, each, 1e5, 8, Rates()) for each in layouts)
    assert five == pytest.approx(5 * one)
    assert train_time(CLUSTER, model, layouts[1], load).bubble == pytest.approx(3 / 43)


def test_interleaving_takes_a_multiple_of_the_stages() -> None:
    layout = TrainLayout(tp=1, pp=4, dp=1, vpp=2, micro_batch_tok=1000)
    assert num_micro_batches(TrainLoad(64, 9500.0, 1.0, 1.0), layout, 1) == 12
    assert num_micro_batches(TrainLoad(11, 9500.0, 1.0, 1.0), layout, 1) == 8
    assert num_micro_batches(TrainLoad(3, 9500.0, 1.0, 1.0), layout, 1) == 0


def test_recompute_costs_a_forward_pass() -> None:
    model = load_model("qwen3-14b")
    layouts = [TrainLayout(tp=1, dp=8, recompute=recompute) for recompute in (True, False)]
    with_s, without_s = (train_time(CLUSTER, model, each, LOAD).work_s for each in layouts)
    assert with_s / without_s == pytest.approx(5 / 4)


def test_a_context_ring_passes_on_keys_and_values() -> None:
    """Ring attention: each of the `cp - 1` hops moves a rank's own keys and values, five times with recompute."""
    model = load_model("qwen3-14b")
    layout = TrainLayout(tp=2, dp=1, cp=4)
    tok = 1e6
    chunk_bytes = tok / 4 * model.kv_bytes_per_tok / 2
    expected_s = 3 * (5 * chunk_bytes / link_bytes_s(CLUSTER) + 5 * 40 * 10e-6)
    assert context_s(CLUSTER, model, layout, 5, tok * 40 / 4, 40, Rates()) == pytest.approx(expected_s)
    assert context_s(CLUSTER, model, TrainLayout(tp=2, dp=4), 5, tok * 40, 40, Rates()) == 0.0


def test_context_parallelism_spreads_a_long_sequence() -> None:
    """A lone sequence of 40,000 tokens bounds data parallelism; on the same GPUs a ring shares it."""
    model = load_model("qwen3-14b")
    load = TrainLoad(8, 8 * 1000.0 + 39_000, 8e6 + 39_000.0**2, 40_000.0)
    data, context = (train_time(CLUSTER, model, each, load).work_s for each in (
        TrainLayout(tp=2, dp=4), TrainLayout(tp=2, dp=1, cp=4)))  # fmt: skip
    assert context < 0.5 * data


def test_every_collective_of_a_micro_batch_has_its_latency() -> None:
    model = load_model("qwen3-14b")
    one, four = (tensor_s(CLUSTER, model, 4, 5, 1e6, calls, Rates(train_link=LINK_EFFICIENCY)) for calls in (40, 160))
    assert four - one == pytest.approx(8 * 120 * 10e-6)


def test_the_pipeline_waits_for_the_widest_micro_batch() -> None:
    """Ten micro-batches of which one is half of the work: three stages idle for that one each."""
    assert idle_ratio(4, 1, 10, longest_share=0.5) == 3 * 0.5
    assert idle_ratio(4, 3, 10, longest_share=0.5) == 0.5
    assert idle_ratio(4, 1, 10, longest_share=0.01) == pytest.approx(3 / 10)


def test_the_widest_micro_batch_has_a_share_of_traffic_by_its_tokens() -> None:
    """A sequence of a tenth of the tokens has most of the squares: of a slow network's seconds it takes a tenth."""
    model = load_model("qwen3-30b-a3b")
    load = TrainLoad(64, 400_000.0, 5e9, 40_000.0)
    slow, fast = (stage_time(CLUSTER, model, TrainLayout(tp=8, pp=2, dp=1), load, 1, 5, 10, rates) for rates in (
        Rates(train_link=1e-9), Rates(train_link=1e9, train_memory=1e9)))  # fmt: skip
    assert slow.longest_share == pytest.approx(0.1, rel=1e-6)
    squares = forward_flops(model, 0, 40_000.0**2), forward_flops(model, 0, 5e9)
    linear = forward_flops(model, 40_000.0, 0), forward_flops(model, 400_000.0, 0)
    assert fast.longest_share == pytest.approx((squares[0] + linear[0]) / (squares[1] + linear[1]), rel=1e-6)


def test_the_busiest_rank_is_bounded_below_by_what_must_meet() -> None:
    """Against every assignment of up to seven sequences to two or three ranks."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        lengths = sorted(rng.integers(1, 100, int(rng.integers(1, 8))).tolist(), reverse=True)
        dp = int(rng.integers(2, 4))
        load = TrainLoad(len(lengths), sum(lengths), 0.0, lengths[0], tuple(lengths))
        best = min(
            max(sum(tok for tok, rank in zip(lengths, ranks, strict=True) if rank == r) for r in range(dp))
            for ranks in product(range(dp), repeat=len(lengths))
        )
        assert max(sum(lengths) / dp, lengths[0]) <= load.busiest_tok(dp) <= best


def test_three_equal_sequences_on_two_ranks_meet() -> None:
    assert TrainLoad(3, 300, 0.0, 100, (100.0, 100.0, 100.0)).busiest_tok(2) == 200.0


def test_small_models_move_more_bytes_for_each_flop() -> None:
    """Norms and activations grow with the width, products with its square."""
    shares = [
        forward_stream_bytes(model, 1e6) / forward_flops(model, 1e6, 0.0)
        for model in (load_model(name) for name in ("qwen3-4b", "qwen3-8b", "qwen3-14b"))
    ]
    assert shares == sorted(shares, reverse=True)
    q4 = load_model("qwen3-4b")
    assert forward_stream_bytes(q4, 1.0) == 2 * 36 * (10 * 2560 + 2 * (32 + 8) * 128 + 3 * 9728)
