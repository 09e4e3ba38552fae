from __future__ import annotations

import msgspec
import pytest

from libra.clusters import load_cluster
from libra.core.plan import TrainLayout
from libra.cost.memory import (
    activation_bytes_per_gpu,
    engine_bytes_per_gpu,
    engine_fits,
    in_flight_layers,
    kv_bytes_per_tok_per_gpu,
    kv_capacity_tok,
    train_bytes_per_gpu,
    train_fits,
    train_params_per_gpu,
)
from libra.models import load_model

GPU = load_cluster("a800x48").gpu
Q14 = load_model("qwen3-14b")
MOE = load_model("qwen3-30b-a3b")


def test_kv_bytes_are_split_by_heads_and_no_further() -> None:
    assert kv_bytes_per_tok_per_gpu(Q14, 1) == 2 * 40 * 8 * 128 * 2
    assert kv_bytes_per_tok_per_gpu(Q14, 8) == 2 * 40 * 1 * 128 * 2
    # Four KV heads over eight GPUs: each holds a whole head.
    assert kv_bytes_per_tok_per_gpu(MOE, 8) == kv_bytes_per_tok_per_gpu(MOE, 4)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_fault_2_capacity_uses_bytes_of_one_gpu_throughout(tp: int) -> None:
    """Total cache bytes over the instance never exceed what its memory has left beside the weights."""
    used = kv_capacity_tok(GPU, Q14, tp) * Q14.kv_bytes_per_tok + Q14.weight_bytes
    assert used <= tp * GPU.memory_gb * 2**30 * 0.9
    assert kv_capacity_tok(GPU, Q14, 1) == int((72 * 2**30 - 2e9 - Q14.weight_bytes) / Q14.kv_bytes_per_tok)


def test_fault_7_head_dim_is_the_models_own() -> None:
    """Qwen3-30B-A3B: 2048 / 32 heads would be 64; its KV cache has 128."""
    assert MOE.head_dim == 128
    assert kv_bytes_per_tok_per_gpu(MOE, 1) == 2 * 48 * 4 * 128 * 2


def test_fault_8_a_model_or_context_that_does_not_fit_is_refused() -> None:
    big = load_model("qwen3-32b")
    assert not engine_fits(GPU, big, 1, 40960)
    assert engine_fits(GPU, big, 2, 40960)
    assert not engine_fits(GPU, Q14, 1, 400_000)


def test_engine_bytes_add_up() -> None:
    expected = Q14.weight_bytes / 4 + 2e9 + 1000 * Q14.kv_bytes_per_tok / 4
    assert engine_bytes_per_gpu(GPU, Q14, 4, 1000) == expected


def test_adam_is_sharded_over_data_parallelism() -> None:
    small, large = (train_bytes_per_gpu(Q14, TrainLayout(tp=4, dp=dp)) for dp in (2, 4))
    assert small - large == pytest.approx(12 * Q14.num_params / 4 * (1 / 2 - 1 / 4))


def test_expert_parallelism_splits_experts_only() -> None:
    whole = train_params_per_gpu(MOE, TrainLayout(tp=1, dp=4))
    split = train_params_per_gpu(MOE, TrainLayout(tp=1, dp=4, ep=4))
    experts = 48 * 128 * 3 * 2048 * 768
    assert whole == MOE.num_params
    assert split == pytest.approx(MOE.num_params - experts * 3 / 4)
    # Adam's total is the same: what ep splits, it no longer shards.
    difference = train_bytes_per_gpu(MOE, TrainLayout(tp=1, dp=4)) - train_bytes_per_gpu(
        MOE, TrainLayout(tp=1, dp=4, ep=4)
    )
    assert difference == pytest.approx(6 * experts * 3 / 4)


def test_one_gpu_does_not_train_14b() -> None:
    assert not train_fits(GPU, Q14, TrainLayout(tp=1, dp=1))
    assert train_fits(GPU, Q14, TrainLayout(tp=8, dp=1))


def test_activations_are_those_of_the_paper() -> None:
    """Korthikanti et al. 2022 keep 34 bytes a token, layer and hidden unit of a GPT block with flash attention: 2 are
    dropout masks, which there are none of here, and a gated block keeps a third product of 4 hidden units, 8 bytes."""
    gpt = msgspec.structs.replace(Q14, hidden=4096, num_heads=32, num_kv_heads=32, head_dim=128, ffn=4 * 4096)
    kept = {}
    for recompute in (True, False):
        one, two = (
            activation_bytes_per_gpu(
                msgspec.structs.replace(gpt, num_layers=layers), TrainLayout(1, 1, recompute=recompute)
            )
            for layers in (1, 2)
        )
        kept[recompute] = (two - one) / 40960 / 4096
    assert kept == {True: 2, False: 34 - 2 + 8}


def test_interleaving_holds_more_activations() -> None:
    """Korthikanti et al. 2022: L (1 + (p - 1) / (p m)) layers are in flight with m chunks a stage."""
    assert in_flight_layers(Q14, TrainLayout(tp=1, dp=1, pp=4)) == 40
    assert in_flight_layers(Q14, TrainLayout(tp=1, dp=1, pp=4, vpp=2)) == 40 * (1 + 3 / 8)


def test_a_context_ring_splits_activations_and_shards_adam() -> None:
    one, four = TrainLayout(tp=2, dp=4), TrainLayout(tp=2, dp=1, cp=4)
    assert activation_bytes_per_gpu(Q14, four) == activation_bytes_per_gpu(Q14, one) / 4
    assert train_bytes_per_gpu(Q14, one) - train_bytes_per_gpu(Q14, four) == pytest.approx(
        activation_bytes_per_gpu(Q14, one) * 3 / 4
    )
