"""Engines of the sizes that a plan names (verl/workers/rollout/llm_server.py makes them all alike).

`LLMServerManager._initialize_llm_servers` (line 420 of verl 0.9.1) is the one method without a hook.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from omegaconf import DictConfig, open_dict
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplica

from libra.core.plan import Plan
from libra.integrations.settings import OnRefresh


class PlannedServers(LLMServerManager):
    """One replica per instance of `plan`, its rank the instance's number; `router` is Libra's actor."""

    def __init__(self, config: DictConfig, plan: Plan, router: Any, on_refresh: OnRefresh = "abort") -> None:
        super().__init__(config=config)
        self._plan, self._router, self._on_refresh = plan, router, on_refresh
        self._next_rank = max(each.id for each in plan.instances) + 1

    async def _initialize_llm_servers(self, start_rank: int | None = None) -> None:
        self.rollout_replicas = [self.replica(each.tp, each.id) for each in self._plan.instances]
        await asyncio.gather(*[replica.init_standalone() for replica in self.rollout_replicas])
        self.server_handles = [replica.server_handle for replica in self.rollout_replicas]
        self.server_addresses = [replica.server_address for replica in self.rollout_replicas]

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = self._router
        engines = zip(self._plan.instances, self.rollout_replicas, strict=True)
        await self._router.attach.remote(
            {each.id: (replica.server_address, replica.server_handle) for each, replica in engines}
        )

    def replica(self, tp: int, rank: int | None = None) -> RolloutReplica:
        """A replica of `tp` devices, not started yet. Ranks name actors, so one that starts again takes a new one."""
        if rank is None:
            rank, self._next_rank = self._next_rank, self._next_rank + 1
        config = copy.deepcopy(self.rollout_config)
        with open_dict(config):
            config.tensor_model_parallel_size = tp
        gpus_per_node = max(tp, self.rollout_config.n_gpus_per_node)
        found = self.rollout_replica_class(rank, config, self.model_config, gpus_per_node=gpus_per_node)
        if self._on_refresh != "abort":
            from libra.integrations.verl.holding_server import SERVERS

            found.server_class = SERVERS[self._on_refresh]
        return found
