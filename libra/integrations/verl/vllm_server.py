"""verl's vLLM server, which also says how long a request waited in the engine's queue and how often it was preempted.

vLLM measures both for each request; verl 0.9.1 drops the first and looks for the second where V1 engines have it no
more (verl/workers/rollout/vllm_rollout/vllm_async_server.py, `generate`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica


class Watching:
    """Mixed into verl's server. What it adds is None where vLLM keeps no statistics."""

    _seen: dict[str, Any]
    """Of requests under way: vLLM's `RequestStateStats`, and seconds since they were asked. None before any answer."""

    async def run_server(self: Any, args: Any) -> None:
        await super().run_server(args)  # type: ignore[misc]
        self._seen = {}
        self.engine.generate = self._watched(self.engine.generate)

    def _watched(self, generate: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
        async def run(*given: Any, **asked: Any) -> AsyncIterator[Any]:
            """vLLM's HTTP endpoints ask the same engine, and name the request as the third argument."""
            began_s, request_id = time.monotonic(), asked["request_id"] if "request_id" in asked else given[2]
            async for output in generate(*given, **asked):
                if request_id in self._seen:
                    self._seen[request_id] = (output.metrics, time.monotonic() - began_s)
                yield output

        return run

    async def generate(self: Any, *given: Any, request_id: str, **asked: Any) -> TokenOutput:
        self._seen[request_id] = None
        try:
            output: TokenOutput = await super().generate(*given, request_id=request_id, **asked)  # type: ignore[misc]
        finally:
            seen = self._seen.pop(request_id, None)
        output.extra_fields["queue_s"] = _queue_s(*seen) if seen else 0.0
        if seen and seen[0] is not None:
            output.num_preempted = seen[0].num_preemptions
        return output


def _queue_s(stats: Any, asked_s: float) -> float | None:
    """A request that was never scheduled, as it was aborted before, has waited all the time since it was asked."""
    if stats is None:
        return None
    return float(stats.scheduled_ts - stats.queued_ts) if stats.scheduled_ts else asked_s


class WatchedServer(Watching, vLLMHttpServer):
    pass


class WatchedReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(WatchedServer)
