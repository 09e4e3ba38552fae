from __future__ import annotations

import msgspec
import pytest

from libra.clusters import load_cluster
from libra.core.plan import TrainLayout
from libra.cost.communication import (
    COLLECTIVE_LATENCY_S,
    LINK_EFFICIENCY,
    all_reduce_s,
    all_to_all_s,
    gpus_on_network,
    gradient_sync_s,
    weight_sync_s,
)
from libra.cost.rates import Rates
from libra.models import load_model

CLUSTER = load_cluster("a800x48")
Q14 = load_model("qwen3-14b")
RATES = Rates()
NETWORK = CLUSTER.network_gb_s * 1e9 * RATES.network
LINK = CLUSTER.gpu.link_gb_s * 1e9 * LINK_EFFICIENCY


def test_all_reduce_is_a_ring_with_a_floor() -> None:
    assert all_reduce_s(1e6, 1, CLUSTER) == 0
    assert all_reduce_s(0.0, 8, CLUSTER) == COLLECTIVE_LATENCY_S
    assert all_reduce_s(1e9, 4, CLUSTER) == pytest.approx(COLLECTIVE_LATENCY_S + 1.5 * 1e9 / LINK)


def test_fault_6_a_200_gbit_nic_moves_at_most_25_gb_a_second() -> None:
    assert NETWORK <= 2.5e10
    assert weight_sync_s(CLUSTER, Q14, colocated=False) == pytest.approx(Q14.weight_bytes / NETWORK)


def test_fault_6_gradients_cross_the_network_exactly_when_replicas_do() -> None:
    inside = gradient_sync_s(CLUSTER, Q14, TrainLayout(tp=4, dp=2), 2, RATES)
    assert inside == pytest.approx(Q14.num_params / 4 * 6 / 2 / LINK)
    # Two nodes of TP8: eight rings share the one NIC of a node, which then moves all of the gradient once.
    across = gradient_sync_s(CLUSTER, Q14, TrainLayout(tp=8, dp=2), 2, RATES)
    assert across == pytest.approx(Q14.num_params * 6 / 2 / NETWORK)
    assert gradient_sync_s(CLUSTER, Q14, TrainLayout(tp=8, dp=1), 1, RATES) == 0


def test_fault_6_nvlink_of_a800_is_two_thirds_of_a100() -> None:
    a100 = msgspec.structs.replace(CLUSTER, gpu=msgspec.structs.replace(CLUSTER.gpu, link_gb_s=300.0))
    slow, fast = (all_reduce_s(1e9, 8, c) - COLLECTIVE_LATENCY_S for c in (CLUSTER, a100))
    assert fast / slow == pytest.approx(2 / 3)


def test_all_to_all_leaves_the_node_only_when_it_must() -> None:
    assert all_to_all_s(1e9, 1, 1, CLUSTER, RATES) == 0
    assert all_to_all_s(1e9, 8, 1, CLUSTER, RATES) == pytest.approx(COLLECTIVE_LATENCY_S + 7 / 8 * 1e9 / LINK)
    assert all_to_all_s(1e9, 16, 1, CLUSTER, RATES) == pytest.approx(
        COLLECTIVE_LATENCY_S + 8 / 16 * 1e9 / (NETWORK / 8)
    )


def test_only_gpus_of_whole_replicas_share_a_node_s_network() -> None:
    """Replicas of six lie one in a node, whose two other GPUs have nothing to send; a replica of 16 fills its nodes."""
    assert [gpus_on_network(CLUSTER, size) for size in (1, 3, 4, 5, 6, 8, 16)] == [8, 6, 8, 5, 6, 8, 8]
    six, eight = (all_to_all_s(1e9, 2, size, CLUSTER, RATES) - COLLECTIVE_LATENCY_S for size in (6, 8))
    assert six == pytest.approx(1e9 / 2 * 6 / NETWORK)
    assert eight == pytest.approx(1e9 / 2 * 8 / NETWORK)


def test_the_network_s_share_scales_what_crosses_it() -> None:
    half = Rates(network=RATES.network / 2)
    across = TrainLayout(tp=8, dp=2)
    for rates, factor in ((RATES, 1), (half, 2)):
        assert weight_sync_s(CLUSTER, Q14, colocated=False, rates=rates) == pytest.approx(
            Q14.weight_bytes / NETWORK * factor
        )
        assert gradient_sync_s(CLUSTER, Q14, across, 2, rates) == pytest.approx(Q14.num_params * 3 / NETWORK * factor)
