"""vLLM servers whose requests outlive a weight refresh: they are held, and go on under the new weights.

verl 0.9.1 aborts all requests and its client asks again (`abort_all_requests`, workers/rollout/vllm_rollout/
vllm_async_server.py line 931); it has no hook for vLLM's other modes. Here its own method runs, gate and all, with the
engine's pause replaced. Which weights sampled a token is told by when it came: the pause ends after the last old one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import ray
from verl.workers.rollout.replica import TokenOutput

from libra.integrations.verl.vllm_server import WatchedServer

_Server: Any = WatchedServer
if os.environ.get("VERL_PLATFORM") == "cpu":
    from libra.integrations.verl.cpu.vllm_server import CpuVllmServer

    _Server = CpuVllmServer


@dataclass
class _UnderWay:
    """A request in the engine; `spans` are [version, tokens]."""

    prompt_tok: int
    spans: list[list[int]] = field(default_factory=list)
    refilled_tok: int = 0

    @property
    def generated_tok(self) -> int:
        return sum(tokens for _, tokens in self.spans)

    def has_now(self, generated_tok: int, version: int) -> None:
        """Tokens so far; the new ones were sampled by `version`."""
        new_tok = generated_tok - self.generated_tok
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1][1] += new_tok
        elif new_tok:
            self.spans.append([version, new_tok])


class HoldingServer(_Server):
    """Outputs say which version sampled how many tokens, and how many were prefilled again."""

    clears_cache = True
    """Whether held requests compute their keys and values again, so that all of their context is the new weights'."""

    async def run_server(self, args: argparse.Namespace) -> None:
        await super().run_server(args)
        self._under_way: dict[str, _UnderWay] = {}
        self._holds = True
        self._generate, self._abort = self.engine.generate, self.engine.pause_generation
        self.engine.generate, self.engine.pause_generation = self._followed, self._pause

    async def generate(self, *, prompt_ids: list[int], request_id: str, **asked: Any) -> TokenOutput:
        mine = self._under_way[request_id] = _UnderWay(len(prompt_ids))
        try:
            output: TokenOutput = await super().generate(prompt_ids=prompt_ids, request_id=request_id, **asked)
        finally:
            del self._under_way[request_id]
        output.extra_fields |= {"version_spans": mine.spans, "refilled_tok": mine.refilled_tok}
        if mine.spans:
            output.extra_fields |= {"min_global_steps": mine.spans[0][0], "max_global_steps": mine.spans[-1][0]}
        return output

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict[str, Any]:
        """Hold them, unless the engine leaves the rotation."""
        self._holds = not reject_request
        return await super().abort_all_requests(reset_prefix_cache, reject_request)

    async def _pause(self, wait_for_inflight_requests: bool, clear_cache: bool) -> None:
        if not self._holds:
            await self._abort(wait_for_inflight_requests=wait_for_inflight_requests, clear_cache=clear_cache)
            return
        await type(self.engine).pause_generation(self.engine, mode="keep", clear_cache=self.clears_cache)
        if self.clears_cache:
            for each in self._under_way.values():
                each.refilled_tok += each.prompt_tok + each.generated_tok if each.spans else 0

    async def _followed(self, *given: Any, request_id: str = "", **more: Any) -> AsyncIterator[Any]:
        mine = self._under_way.get(request_id)
        named = {"request_id": request_id} if request_id else {}
        async for output in self._generate(*given, **named, **more):
            if mine is not None and output.outputs:
                mine.has_now(len(output.outputs[0].token_ids), int(self.global_steps or 0))
            yield output


class CacheKeepingServer(HoldingServer):
    """Held requests go on with the keys and values of the old weights; other requests may find them, too."""

    clears_cache = False


SERVERS = {"keep": ray.remote(HoldingServer), "keep_kv": ray.remote(CacheKeepingServer)}
"""By the setting `on_refresh`; for `abort` it is the replica's own."""
