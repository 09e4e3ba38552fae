"""The vLLM server actor on a CPU (verl 0.9.1, verl/workers/rollout/vllm_rollout/vllm_async_server.py)."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMReplica

from libra.integrations.verl.vllm_server import WatchedServer

WORKER_EXTENSION = "libra.integrations.verl.cpu.vllm_worker.CpuWorkerExtension"


class CpuVllmServer(WatchedServer):
    """One engine. Its workers run unpinned: with more processes than cores the kernel's scheduler does better."""

    def _get_worker_extension_cls(self) -> str:
        return WORKER_EXTENSION

    def _post_init(self, cuda_visible_devices: str) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        super()._post_init(cuda_visible_devices)

    async def run_server(self, args: argparse.Namespace) -> None:
        await super().run_server(args)
        self.engine.pause_generation = partial(_pause, self.engine.pause_generation)


async def _pause(pause: Any, wait_for_inflight_requests: bool, clear_cache: bool) -> None:
    """verl 0.9.1 asks as vLLM was asked until 0.19; the only CPU build, 0.32, wants a mode."""
    await pause(mode="wait" if wait_for_inflight_requests else "abort", clear_cache=clear_cache)


class CpuVllmReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(CpuVllmServer)
