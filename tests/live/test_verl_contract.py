"""verl's extension points that we use are where they were: each name here breaks loudly when verl moves."""

from __future__ import annotations

import inspect
import os

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
