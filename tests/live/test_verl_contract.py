"""verl's extension points that we use are where they were: each name here breaks loudly when verl moves."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from libra.integrations.verl.router import LibraRouter
from libra.integrations.verl.version import VERL, check_verl


def test_the_installed_verl_is_the_one_we_attach_to() -> None:
    import verl

    check_verl()
    assert verl.__version__.startswith(VERL)


def test_the_router_answers_verls_whole_protocol() -> None:
    from verl.workers.rollout.router import GlobalRequestLoadBalancer, RequestLoadBalancer

    for protocol in (RequestLoadBalancer, GlobalRequestLoadBalancer):
        asked = {name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"}
        assert asked <= {name for name in dir(LibraRouter) if name[0] != "_"}


def test_methods_that_we_override_are_there() -> None:
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
    from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    expected = {
        AgentLoopManagerTQ: ("_init_agent_loop_workers", "generate_sequences"),
        worker: ("_run_agent_loop", "_agent_loop_postprocess"),
        LLMServerClient: ("generate", "_acquire_server", "_release_server", "_vllm_request_id"),
        LLMServerManager: ("_initialize_llm_servers", "_init_global_load_balancer", "get_client", "create"),
        PPOTrainerSeparateAsync: ("_setup", "step", "on_step_end", "fit", "get_llm_client"),
        vLLMHttpServer: ("run_server", "_post_init", "_get_worker_extension_cls", "generate"),
        vLLMReplica: ("init_standalone", "launch_servers"),
    }
    missing = [(cls.__name__, name) for cls, names in expected.items() for name in names if not hasattr(cls, name)]
    assert missing == []


def test_the_worker_extension_still_takes_weights_this_way() -> None:
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    parameters = inspect.signature(vLLMColocateWorkerExtension.update_weights_from_ipc).parameters
    assert list(parameters) == ["self", "peft_config", "base_sync_done", "use_shm"]


def test_the_bug_that_the_plugin_mends_is_still_there() -> None:
    """When this fails, `plugin._accept_flush` can go."""
    from verl.trainer.ppo.v1 import trainer_separate_async

    assert "flush=True" in inspect.getsource(trainer_separate_async)


def configuration(cluster: str, folder: Path) -> Any:
    """verl's whole configuration of a job; hydra refuses a setting that verl doesn't know."""
    from hydra import compose, initialize_config_module

    from libra.backends.live.job import Job, arguments
    from libra.backends.live.options import LiveOptions
    from libra.clusters import load_cluster
    from libra.clusters.live import load_live
    from libra.core.events import PipelineSpec

    path = Path(__file__).resolve().parents[1] / f"data/live/{cluster}.toml"
    pipeline = PipelineSpec("async", staleness=1)
    job = Job(folder, folder, load_cluster(path), load_live(path), LiveOptions(), pipeline, 1e-3, 256, 512, 0)
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=arguments(job))


def test_fsdp2_shards_over_every_training_device_of_a_plan(tmp_path: Path) -> None:
    from libra.core.plan import InstanceSpec, Plan, TrainLayout
    from libra.integrations.verl.trainer import apply_plan

    config = configuration("cpu4", tmp_path)
    apply_plan(config, Plan(TrainLayout(tp=2, dp=1), (InstanceSpec(0, 1),), (768,)))
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 2)
    assert config.actor_rollout_ref.actor.strategy == "fsdp2"
    assert config.actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype == "fp32"


def test_megatron_gets_a_plans_parallelism(tmp_path: Path) -> None:
    from libra.core.plan import InstanceSpec, Plan, TrainLayout
    from libra.integrations.verl.trainer import apply_plan

    config = configuration("cpu3", tmp_path)
    apply_plan(config, Plan(TrainLayout(tp=2, pp=4, vpp=2, dp=2), (InstanceSpec(0, 1),), (768,)))
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node >= 16
    megatron = config.actor_rollout_ref.actor.megatron
    assert config.actor_rollout_ref.actor.strategy == "megatron"
    assert (megatron.tensor_model_parallel_size, megatron.pipeline_model_parallel_size) == (2, 4)
    assert (megatron.context_parallel_size, megatron.expert_model_parallel_size) == (1, 1)
    assert megatron.virtual_pipeline_model_parallel_size == 2
    assert megatron.use_distributed_optimizer


def test_the_cpu_finds_its_own_megatron_engine_and_refuses_what_it_cannot_do() -> None:
    pytest.importorskip("mbridge", reason="needs the live stack: `make live-test`")
    from types import SimpleNamespace

    from mbridge.core.bridge import _MODEL_REGISTRY
    from verl.workers.engine import EngineRegistry

    from libra.core.errors import ConfigError
    from libra.integrations.verl.cpu import megatron

    assert EngineRegistry.get_engine_cls("language_model", "megatron") is megatron.CpuMegatronEngine
    assert _MODEL_REGISTRY["qwen3"] is megatron.TorchQwen3Bridge
    dense, plain = SimpleNamespace(model_type="qwen3"), SimpleNamespace(context_parallel_size=1)
    megatron.check(dense, plain)
    with pytest.raises(ConfigError, match="another family"):
        megatron.check(SimpleNamespace(model_type="llama"), plain)
    with pytest.raises(ConfigError, match="context parallelism"):
        megatron.check(dense, SimpleNamespace(context_parallel_size=2))


@pytest.mark.parametrize("kind", ["barrier", "colocated"])
def test_the_overrides_that_a_plan_is_emitted_as_are_known_to_verl(kind: str) -> None:
    """Without a `+`, Hydra refuses a key that verl's configuration doesn't have."""
    from hydra import compose, initialize_config_module

    from libra.clusters import load_cluster
    from libra.core.events import PipelineSpec, RunStart
    from libra.core.plan import InstanceSpec, Plan, TrainLayout
    from libra.integrations.emit import Planned, settings

    instances = tuple(InstanceSpec(i, 8) for i in range(4))
    plan = Plan(TrainLayout(4, 4), instances, (40960,), colocated=kind == "colocated")
    run = RunStart(0.0, "a800x48", "qwen3-14b", PipelineSpec(kind), 128, 16, 1, 40960)  # type: ignore[arg-type]
    overrides = settings("verl", Planned(plan, load_cluster("a800x48"), run)).split()
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 16
    assert config.actor_rollout_ref.actor.megatron.tensor_model_parallel_size == 4
    assert config.actor_rollout_ref.rollout.n == 16
