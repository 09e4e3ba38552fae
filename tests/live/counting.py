"""The holding server with a switch between all ways, and a count of the tokens that its engine's passes take in."""

from __future__ import annotations

from typing import Any

from libra.integrations.verl.cpu.vllm_worker import CpuWorkerExtension
from libra.integrations.verl.holding_server import HoldingServer


class CountingExtension(CpuWorkerExtension):
    num_scheduled_tok = -1

    def scheduled_tok(self) -> int:
        """Tokens since the first call."""
        if self.num_scheduled_tok < 0:
            self.num_scheduled_tok, inner = 0, self.model_runner.execute_model

            def execute_model(scheduled: Any, *given: Any, **more: Any) -> Any:
                self.num_scheduled_tok += scheduled.total_num_scheduled_tokens
                return inner(scheduled, *given, **more)

            self.model_runner.execute_model = execute_model
        return self.num_scheduled_tok


class CountingServer(HoldingServer):
    way = "keep"

    def _get_worker_extension_cls(self) -> str:
        return "counting.CountingExtension"

    async def scheduled_tok(self) -> list[int]:
        """By worker; verl's `collective_rpc` keeps the answers to itself."""
        found: list[int] = await self.engine.collective_rpc("scheduled_tok")
        return found

    async def _pause(self, wait_for_inflight_requests: bool, clear_cache: bool) -> None:
        self._holds, self.clears_cache = self.way != "abort", self.way == "keep"
        await super()._pause(wait_for_inflight_requests, clear_cache)
