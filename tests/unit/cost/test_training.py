from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from libra.clusters import load_cluster
from libra.core.plan import TrainLayout
from libra.cost.training import TrainLoad, forward_flops, forward_stream_bytes, num_micro_batches, train_time
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
