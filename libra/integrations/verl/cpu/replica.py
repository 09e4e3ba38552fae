"""verl's own vLLM server and replica on a CPU: what differs is the worker's way to take new weights, and its cores."""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Under the name `vllm`, so that a job's configuration need not say that it runs on a CPU."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _load)


def _load() -> type[Any]:
    from libra.integrations.verl.cpu.vllm_server import CpuVllmReplica

    return CpuVllmReplica
