"""Faults 7, 10, 13 and 14 of the authors' planner, where no other test names them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import pytest

from libra.backends.sim.truth import Truth
from libra.clusters import load_cluster
from libra.core.errors import CapacityError, ConfigError
from libra.core.hardware import Cluster, Model
from libra.core.policy import Statistics
from libra.cost.training import TrainLoad
from libra.models import list_models, load_model
from libra.planning import tree
from libra.planning.search import JointPlanner
from libra.planning.topology import RUNNABLE, Space
from libra.planning.tree import Tree

CLUSTER_FILE = Path(__file__).parents[3] / "libra/clusters/a800x48.toml"
LOAD = TrainLoad(128, 128 * 8000.0, 128 * 2 * 8000.0**2, 40960.0)


@pytest.mark.parametrize("name", list_models())
def test_fault_7_the_file_that_is_asked_for_is_the_one_that_is_read(name: str) -> None:
    assert load_model(name).name == name


@pytest.mark.parametrize("space", [RUNNABLE, Space()])
@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-14b", "qwen3-30b-a3b", "qwen3-32b"])
def test_fault_10_every_layout_that_may_be_planned_runs_in_the_simulator(
    cluster: Cluster, name: str, space: Space
) -> None:
    """Pipelines, rings and chunks too: the simulator builds each, finds that it fits, and gives it a time."""
    model = load_model(name)
    trainer = Truth(cluster, model)._train
    lengths = [40960, 20000, *[8000] * 30]
    kinds = set()
    for num_gpus in (8, 16, 24, 40, 48):
        for leaf in Tree(cluster, model, num_gpus, LOAD, 40960, space, 32).ascending():
            layout = leaf.layout
            trainer.check_fits(layout)
            kind = (layout.pp > 1, layout.cp > 1, layout.ep > 1, layout.vpp > 1, layout.recompute)
            if kind not in kinds:
                kinds.add(kind)
                assert trainer.step_s(layout, lengths).total_s > 0
    assert {kind[:2] for kind in kinds} >= set(product((False, True), [size > 1 for size in space.context_sizes]))


def test_fault_13_unknown_keys_and_unequal_nodes_are_errors(tmp_path: Path) -> None:
    text = CLUSTER_FILE.read_text()
    path = tmp_path / "odd.toml"
    path.write_text(text.replace("num_nodes = 6", "num_nodes = 6\nnum_racks = 2"))
    with pytest.raises(ConfigError, match="unknown key"):
        load_cluster(str(path))
    path.write_text(text.replace("gpus_per_node = 8", "gpus_per_node = [8, 4]"))
    with pytest.raises(ConfigError, match="gpus_per_node"):
        load_cluster(str(path))


def test_fault_14_the_work_hardly_grows_with_gpus_and_requests(
    cluster: Cluster, model: Model, statistics: Callable[..., Statistics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layouts that are priced in one plan (branch and bound leaves out nearly all), and points that lengths come to."""
    priced = []
    real = tree.train_time
    monkeypatch.setattr(tree, "train_time", lambda *args, **more: priced.append(args[2]) or real(*args, **more))
    counts, points = {}, {}
    for num_nodes, batch in ((6, 512), (6, 4096), (2048, 512)):
        large = msgspec.structs.replace(cluster, num_nodes=num_nodes)
        planner, asked = JointPlanner(large, model, space=Space()), statistics(batch)
        priced.clear()
        planner.plan(asked, None)
        counts[num_nodes, batch] = len(priced) / len(planner.splits(planner.estimator.demand(asked, None)))
        points[num_nodes, batch] = len(planner.estimator.demand(asked, None).requests)
    assert max(counts.values()) < 100
    assert points[6, 4096] <= 2 * points[6, 512]


@pytest.mark.parametrize("num_gpus", [1, 47, 97])
def test_a_prime_number_of_gpus_has_a_plan_or_an_error_that_says_what_fits(
    cluster: Cluster, statistics: Callable[..., Statistics], num_gpus: int
) -> None:
    """Nodes of one GPU: tensor parallelism has no room, pipelines and rings need divisors of the split."""
    prime = msgspec.structs.replace(cluster, num_nodes=num_gpus, gpus_per_node=1)
    planner = JointPlanner(prime, load_model("qwen3-4b"))
    if num_gpus > 1:
        plan = planner.plan(statistics(), None)
        assert plan.train.tp == 1
        assert plan.num_gpus == num_gpus
    with pytest.raises(CapacityError, match="to mend"):
        JointPlanner(prime, load_model("qwen3-4b"), train_gpus=1 if num_gpus > 1 else None).plan(statistics(), None)
