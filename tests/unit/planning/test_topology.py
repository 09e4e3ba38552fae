from __future__ import annotations

import pytest

from libra.core.hardware import Cluster, Gpu, Model
from libra.cost.memory import train_fits
from libra.cost.training import TrainLoad
from libra.models import load_model
from libra.planning.topology import Limits, leaves, no_layout, packs_into_nodes, tensor_sizes

LOAD = TrainLoad(128, 128 * 8000.0, 128 * 8000.0**2, 40960.0)


def test_every_leaf_divides_fits_and_uses_all_gpus(cluster: Cluster) -> None:
    for name in ("qwen3-4b", "qwen3-14b", "qwen3-30b-a3b"):
        model = load_model(name)
        for num_gpus in (8, 12, 16, 24, 40):
            for leaf in leaves(cluster, model, num_gpus, LOAD, 40960):
                layout = leaf.layout
                assert layout.num_gpus == num_gpus
                assert layout.tp <= cluster.gpus_per_node
                assert model.num_layers % layout.pp == 0
                assert layout.dp % layout.ep == 0
                assert layout.dp <= 128
                assert train_fits(cluster.gpu, model, layout)


def test_fault_10_expert_parallelism_is_searched_for_experts_only(cluster: Cluster, model: Model) -> None:
    moe = load_model("qwen3-30b-a3b")
    assert {x.layout.ep for x in leaves(cluster, moe, 32, LOAD, 40960)} > {1, 2}
    assert {x.layout.ep for x in leaves(cluster, model, 32, LOAD, 40960)} == {1}


def test_leaves_are_sorted_and_pruned(cluster: Cluster, model: Model) -> None:
    found = leaves(cluster, model, 32, LOAD, 40960, limits=Limits(max_bubble=0.2))
    times = [leaf.time.total_s for leaf in found]
    assert times == sorted(times)
    assert all(leaf.time.bubble <= 0.2 for leaf in found)


def test_thresholds_never_prune_the_last_fitting_leaf(cluster: Cluster, model: Model) -> None:
    assert leaves(cluster, model, 8, LOAD, 40960, limits=Limits(max_bubble=0.0, max_comm_ratio=0.0))


def test_no_more_replicas_than_trajectories(cluster: Cluster, model: Model) -> None:
    two = TrainLoad(2, 16000.0, 2 * 8000.0**2, 8000.0)
    assert all(leaf.layout.dp <= 2 for leaf in leaves(cluster, model, 32, two, 40960))


def test_replicas_without_a_trajectory_idle_when_there_is_no_other_way(cluster: Cluster, model: Model) -> None:
    one = TrainLoad(1, 8000.0, 8000.0**2, 8000.0)
    assert {leaf.layout.dp > 1 for leaf in leaves(cluster, model, 48, one, 40960)} == {True}


def test_tensor_groups_stay_inside_a_node(cluster: Cluster) -> None:
    assert tensor_sizes(cluster) == (1, 2, 4, 8)
    six = Cluster("six", 2, 6, cluster.gpu, "net", 22.0)
    assert tensor_sizes(six) == (1, 2)
    assert packs_into_nodes(cluster, [8] * 3 + [4] * 3 + [2] * 3 + [1] * 6)
    assert not packs_into_nodes(six, [4, 4, 4])


def test_fault_8_the_error_says_what_is_needed_and_what_would_fit(cluster: Cluster, model: Model) -> None:
    text = str(no_layout(cluster, model, 4, 40960))
    assert "qwen3-14b on 4 GPUs" in text
    assert "77.3 GB of A800-SXM4-80GB are usable" in text
    assert "to mend: give training" in text
    tiny = Cluster("tiny", 1, 2, Gpu("small", 1.0, 4.0, 10.0, 5.0), "net", 1.0)
    assert "larger cluster than tiny" in str(no_layout(tiny, model, 1, 40960))


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_14b_does_not_train_on_one_or_two_gpus(cluster: Cluster, model: Model, num_gpus: int) -> None:
    assert leaves(cluster, model, num_gpus, LOAD, 40960) == ()
