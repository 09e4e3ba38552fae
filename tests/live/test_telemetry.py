"""What an engine tells of itself: its metrics now and then, and how long each request waited in its queue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from verl.workers.rollout.replica import RolloutReplicaRegistry, TokenOutput
from vllm.v1.metrics.stats import RequestStateStats

from libra.integrations.verl.cpu.vllm_server import CpuVllmReplica, CpuVllmServer
from libra.integrations.verl.telemetry import EngineWatch, read_engine
from libra.integrations.verl.vllm_server import WatchedServer, Watching

METRICS = RequestStateStats(queued_ts=5.0, scheduled_ts=5.25, num_preemptions=2)
WAIT_S = 0.05


class Verls:
    """Stands for verl's server: it asks its engine, and passes nothing on of what the engine measured."""

    def __init__(self, outputs: list[Any], stop_reason: str = "completed") -> None:
        self._outputs, self._stop_reason = outputs, stop_reason

    async def run_server(self, args: Any) -> None:
        self.engine = SimpleNamespace(generate=self._generate)

    async def _generate(self, prompt: Any, sampling_params: Any = None, request_id: str = "") -> AsyncIterator[Any]:
        await asyncio.sleep(WAIT_S)
        for output in self._outputs:
            yield output

    async def generate(self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str) -> TokenOutput:
        async for _ in self.engine.generate(prompt=prompt_ids, request_id=request_id):
            pass
        return TokenOutput(token_ids=[1], stop_reason=self._stop_reason, extra_fields={"global_steps": 3})


class Server(Watching, Verls):
    pass


def asked(*metrics: Any) -> TokenOutput:
    """The answer of a server whose engine gives outputs with these metrics."""

    async def run() -> TokenOutput:
        server = Server([SimpleNamespace(metrics=each) for each in metrics])
        await server.run_server(None)
        async for _ in server.engine.generate(prompt=[1], request_id="not ours"):
            pass
        async for _ in server.engine.generate([1], {}, "as vLLM's HTTP endpoints ask"):
            pass
        output = await server.generate([1], {}, request_id="r")
        assert server._seen == {}
        return output

    return asyncio.run(run())


def test_a_requests_wait_and_preemptions_reach_the_client() -> None:
    output = asked(RequestStateStats(queued_ts=5.0), METRICS)
    assert output.extra_fields == {"global_steps": 3, "queue_s": 0.25}
    assert output.num_preempted == 2


def test_a_request_that_was_never_scheduled_has_waited_all_the_time() -> None:
    before_s = time.monotonic()
    queue_s = asked(RequestStateStats()).extra_fields["queue_s"]
    assert WAIT_S <= queue_s <= time.monotonic() - before_s


def test_an_engine_that_measures_nothing_leaves_the_wait_unknown() -> None:
    output = asked(None)
    assert output.extra_fields == {"global_steps": 3, "queue_s": None}
    assert output.num_preempted is None


def test_a_request_that_verl_turned_away_has_waited_in_no_queue() -> None:
    assert asked().extra_fields["queue_s"] == 0.0


GPU = """
from libra.integrations.verl.cpu.vllm_name import alias_vllm
alias_vllm()  # the only part of a CPU's set-up that the import of verl's vLLM server needs
from verl.workers.rollout.replica import RolloutReplicaRegistry
print(RolloutReplicaRegistry.get("vllm").__name__)
"""


def test_every_platforms_server_is_watched() -> None:
    assert issubclass(CpuVllmServer, WatchedServer)
    assert RolloutReplicaRegistry.get("vllm") is CpuVllmReplica
    env = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    done = subprocess.run([sys.executable, "-c", GPU], capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split()[-1:] == ["WatchedReplica"], done.stderr[-2000:]


def test_the_metrics_are_vllms_own() -> None:
    """Filled by vLLM's logger as a running engine fills them."""
    from unittest.mock import MagicMock

    from vllm.config import VllmConfig
    from vllm.v1.engine import FinishReason
    from vllm.v1.metrics.loggers import PrometheusStatLogger
    from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

    config = VllmConfig()
    config.model_config = MagicMock(served_model_name="m", max_model_len=64, is_diffusion=False)
    log = PrometheusStatLogger(config, [0])
    assert read_engine(None) == {
        "num_running": 0, "num_waiting": 0, "kv_cache_share": 0.0, "prefix_query_tok": 0, "prefix_hit_tok": 0,
        "num_preemptions": 0, "num_queued": 0, "queue_s": 0.0,
    }  # fmt: skip
    scheduler = SchedulerStats(num_running_reqs=3, num_waiting_reqs=2, kv_cache_usage=0.5)
    scheduler.prefix_cache_stats.record(100, 40, preempted=False)
    iteration = IterationStats()
    iteration.num_preempted_reqs = 1
    iteration.finished_requests = [FinishedRequestStats(FinishReason.STOP, queued_time=0.5)]
    log.record(scheduler, iteration)
    assert read_engine(None) == {
        "num_running": 3, "num_waiting": 2, "kv_cache_share": 0.5, "prefix_query_tok": 100, "prefix_hit_tok": 40,
        "num_preemptions": 1, "num_queued": 1, "queue_s": 0.5,
    }  # fmt: skip


class Handle:
    """An engine's actor."""

    def __init__(self, found: Any) -> None:
        self.__ray_call__ = SimpleNamespace(remote=self._answer)
        self._found = found

    async def _answer(self, function: Any) -> Any:
        assert function is read_engine
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_engines_that_live_are_sampled_and_others_left_alone() -> None:
    from ray.exceptions import RayActorError

    found = {"num_running": 1, "num_waiting": 0, "kv_cache_share": 0.1, "prefix_query_tok": 9, "prefix_hit_tok": 4,
             "num_preemptions": 0, "num_queued": 3, "queue_s": 0.5}  # fmt: skip
    handles = {0: Handle(found), 1: Handle(RayActorError()), 2: Handle(None)}
    rows: list[Any] = []
    watch = EngineWatch(lambda: handles, rows.append, lambda: 7.0, every_s=0.01)

    async def run() -> None:
        watch.begin()
        watch.begin()
        await asyncio.sleep(0.1)
        watch.end()
        seen = len(rows)
        await asyncio.sleep(0.05)
        assert len(rows) == seen

    asyncio.run(run())
    assert 2 <= len(rows) <= 10
    assert {(row.t_s, row.instance, row.num_running, row.queue_s) for row in rows} == {(7.0, 0, 1, 0.5)}
