"""Wires of the timing truth: all-reduce tables, sharing of a node's network, and the control plane's known answers."""

from __future__ import annotations

import msgspec
import pytest

from libra.backends.sim.constants import load_constants
from libra.backends.sim.truth import Truth
from libra.backends.sim.truth_network import Network
from libra.clusters import load_cluster
from libra.core.plan import TrainLayout
from libra.models import load_model

A800 = load_cluster("a800x48")
A100 = msgspec.structs.replace(A800, gpu=msgspec.structs.replace(A800.gpu, link_gb_s=300.0))
NET, NET_A100 = Network(A800, load_constants()), Network(A100, load_constants())


@pytest.mark.parametrize(("size", "micros"), [(8192, 6.3), (131_072, 11.35), (2_097_152, 27.9), (21e6, 250)])
def test_eight_gpus_on_a100(size: float, micros: float) -> None:
    assert NET_A100.engine_all_reduce_s(size, 8) * 1e6 == pytest.approx(micros, rel=0.02)


def test_a800_is_slower_by_its_link_only() -> None:
    assert NET.engine_all_reduce_s(21e6, 8) * 1e6 == pytest.approx(378, rel=0.15)
    assert NET.engine_all_reduce_s(8192, 8) == NET_A100.engine_all_reduce_s(8192, 8)
    beyond, beyond_a100 = (net.engine_all_reduce_s(2_097_152, 8) - 7.17e-6 for net in (NET, NET_A100))
    assert beyond == pytest.approx(1.5 * beyond_a100)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_all_reduce_never_falls_with_size(tp: int) -> None:
    sizes = [2.0**power for power in range(8, 31)]
    times = [NET.engine_all_reduce_s(size, tp) for size in sizes]
    assert times == sorted(times)
    assert NET.engine_all_reduce_s(1.0, 1) == 0.0


def test_replicas_of_a_node_share_its_network() -> None:
    """Two replicas of TP4 in each of two nodes: four rings cross, each gets a quarter of 22 GB/s."""
    assert NET.rank_bytes_per_s(4, 4) == pytest.approx(22e9 / 4)
    assert NET.rank_bytes_per_s(2, 4) == pytest.approx(132e9)
    assert NET.rank_bytes_per_s(2, 8) == pytest.approx(22e9 / 8)
    assert NET.gradient_s(4.0, 2.0, TrainLayout(tp=4, dp=1)) == 0.0


@pytest.mark.parametrize(
    ("name", "fast", "slow"),
    [("qwen3-4b", 1.1, 1.4), ("qwen3-8b", 1.2, 1.7), ("qwen3-14b", 1.35, 2.3), ("qwen3-30b-a3b", 1.7, 3.8)],
)
def test_weight_sync(name: str, fast: float, slow: float) -> None:
    model = load_model(name)
    assert Truth(load_cluster("a800x48", "nic176"), model).weight_sync_s() == pytest.approx(fast, rel=0.03)
    assert Truth(A800, model).weight_sync_s() == pytest.approx(slow, rel=0.03)
    assert Truth(load_cluster("a800x8"), model).weight_sync_s() == pytest.approx(fast, rel=0.03)


def test_kv_transfer() -> None:
    truth = Truth(A800, load_model("qwen3-14b"))
    for context_tok, inside_ms, across_ms in ((8192, 8, 61), (32_768, 34, 244)):
        assert truth.kv_transfer_s(context_tok, same_node=True) == pytest.approx(5e-3 + inside_ms / 1e3, rel=0.04)
        assert truth.kv_transfer_s(context_tok, same_node=False) == pytest.approx(5e-3 + across_ms / 1e3, rel=0.04)
        assert truth.kv_transfer_s(context_tok, same_node=False) < truth.step_model(1).prefill_s(context_tok)


def test_unmeasured_actions_stay_in_their_measured_ranges() -> None:
    truth = Truth(A800, load_model("qwen3-14b"))
    layout = TrainLayout(tp=4, dp=4)
    assert 30 <= truth.cold_start_s <= 100
    assert 0.1 <= truth.sleep_s <= 6 and 0.1 <= truth.wake_s <= 6
    assert truth.snapshot_join_s(layout) == pytest.approx(1.0 + 2 * 14.77e9 / 11e9, rel=0.01)
    assert truth.regroup_s(layout) == pytest.approx(15 + 9.4, rel=0.01)
