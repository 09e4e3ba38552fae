"""Plans in the words of frameworks: what is written adds up to the plan's GPUs, and what has no words is refused."""

from __future__ import annotations

import re

import pytest

from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.integrations.emit import FRAMEWORKS, Planned, settings

CLUSTER = load_cluster("a800x48")
EQUAL = Plan(TrainLayout(4, 4), tuple(InstanceSpec(i, 8) for i in range(4)), (40960,))
MIXED = Plan(
    TrainLayout(2, 2, pp=2),
    (InstanceSpec(0, 1), InstanceSpec(1, 1), InstanceSpec(2, 2, 1), InstanceSpec(3, 4, 1), InstanceSpec(4, 8, 1)),
    (4000, 40960),
)
COLOCATED = Plan(TrainLayout(4, 12), tuple(InstanceSpec(i, 4) for i in range(12)), (40960,), colocated=True)


def planned(plan: Plan, kind: str = "barrier", staleness: int = 1) -> Planned:
    pipeline = PipelineSpec(kind, staleness)  # type: ignore[arg-type]
    return Planned(plan, CLUSTER, RunStart(0.0, CLUSTER.name, "qwen3-14b", pipeline, 100, 16, 1, 40960))


def pairs(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_verl_gets_pools_of_whole_nodes() -> None:
    found = pairs(settings("verl", planned(EQUAL, "async", 2)))
    rollout = "actor_rollout_ref.rollout"
    assert int(found["trainer.nnodes"]) * int(found["trainer.n_gpus_per_node"]) == 16
    assert int(found[f"{rollout}.nnodes"]) * int(found[f"{rollout}.n_gpus_per_node"]) == 32
    assert found[f"{rollout}.tensor_model_parallel_size"] == "8"
    assert found["actor_rollout_ref.actor.megatron.tensor_model_parallel_size"] == "4"
    assert found["trainer.v1.sampler.max_off_policy_threshold"] == "3"
    assert found["data.train_batch_size"] == "7"  # 100 trajectories in groups of 16


def test_verl_keeps_colocated_stages_together() -> None:
    found = pairs(settings("verl", planned(COLOCATED, "colocated")))
    assert found["trainer.v1.trainer_mode"] == "sync"
    assert "actor_rollout_ref.rollout.nnodes" not in found


def test_areal_and_slime_get_all_gpus() -> None:
    ((rollout, training),) = re.findall(r"vllm:(\w+)\+megatron:(\w+)", settings("areal", planned(EQUAL)))
    degrees = [dict(re.findall(r"([dptce])(\d+)", part)) for part in (rollout, training)]
    assert degrees == [{"d": "4", "p": "1", "t": "8"}, {"d": "4", "p": "1", "t": "4"}]
    flags = settings("slime", planned(EQUAL))
    assert "--actor-num-nodes 2\n--actor-num-gpus-per-node 8\n--rollout-num-gpus 32\n" in flags
    assert "--colocate" in settings("slime", planned(COLOCATED, "colocated"))


def test_servers_share_no_gpu_with_one_another_or_with_training() -> None:
    text = settings("vllm", planned(MIXED))
    used = [
        (int(node), int(gpu))
        for node, gpus in re.findall(r"# node (\d+):.*\nCUDA_VISIBLE_DEVICES=(\S+)", text)
        for gpu in gpus.split(",")
    ]
    assert len(used) == len(set(used)) == MIXED.rollout_gpus
    assert min(used) >= (1, 0)  # training has node 0
    ports = re.findall(r"--port (\d+)", text)
    assert len(set(ports)) == len(MIXED.instances)


@pytest.mark.parametrize("framework", ["verl", "areal", "slime"])
def test_engines_of_several_sizes_are_refused_where_there_are_no_words_for_them(framework: str) -> None:
    with pytest.raises(ConfigError, match="engines of one size"):
        settings(framework, planned(MIXED))


def test_what_has_no_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="apart"):
        settings("areal", planned(COLOCATED, "colocated"))
    with pytest.raises(ConfigError, match="whole number of nodes"):
        settings("verl", planned(Plan(TrainLayout(4, 3), EQUAL.instances, (40960,))))
    with pytest.raises(ConfigError, match="did you mean 'slime'"):
        settings("slyme", planned(EQUAL))
    assert set(FRAMEWORKS) == {"verl", "areal", "slime", "vllm"}
