"""Weights from the trainer to the engines over gloo: a `checkpoint_engine` of verl for devices that NCCL doesn't reach.

`checkpoint_engine.backend=gloo`, `custom_backend_module=libra.integrations.verl.gloo_checkpoint`. Rank 0 of the actor
broadcasts each weight to one member per engine worker. Headers are JSON of a fixed form: nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

TIMEOUT = timedelta(seconds=120)
"""Longer than any CPU broadcast of a model that fits such a machine, shorter than a user's patience."""


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    def __init__(self, bucket_size: int, is_master: bool = False, **_: Any) -> None:
        self.is_master = is_master
        self._rank = -1
        self._group: Any = None
        self._store: Any = None

    def prepare(self) -> dict[str, Any]:
        if not self.is_master:
            return {}
        host = ray.util.get_node_ip_address().strip("[]")
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        return {"host": host, "port": self._store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        master = next(each for each in metadata if each)
        size = rollout_world_size + 1

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            number = len(ranks)
            return {
                "rank": ranks,
                "size": [size] * number,
                "host": [master["host"]] * number,
                "port": [master["port"]] * number,
            }

        return arguments([0] + [-1] * (actor_wg_world_size - 1)), arguments(list(range(1, size)))

    def init_process_group(self, rank: int, size: int, host: str, port: int) -> None:
        self._rank = rank
        if rank < 0:
            return
        if rank > 0:
            self._store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)
        self._group = dist.ProcessGroupGloo(dist.PrefixStore("weights", self._store), rank, size, TIMEOUT)

    def finalize(self) -> None:
        self._group = self._store = None

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Every trainer rank walks the weights (sharded ones are gathered on the way); rank 0 sends."""
        for name, weight in weights:
            whole = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
            if self._rank == 0:
                whole = whole.detach().cpu().contiguous()
                self._send_header([name, list(whole.shape), str(whole.dtype).removeprefix("torch.")])
                self._broadcast(whole)
        if self._rank == 0:
            self._send_header(None)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[tuple[str, torch.Tensor]]:
        while (header := self._receive_header()) is not None:
            name, shape, dtype = header
            yield name, self._broadcast(torch.empty(shape, dtype=getattr(torch, dtype)))

    def _broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        self._group.broadcast([tensor]).wait()
        return tensor

    def _send_header(self, header: list[Any] | None) -> None:
        raw = json.dumps(header).encode()
        self._broadcast(torch.tensor([len(raw)]))
        self._broadcast(torch.frombuffer(bytearray(raw), dtype=torch.uint8))

    def _receive_header(self) -> list[Any] | None:
        size = int(self._broadcast(torch.zeros(1, dtype=torch.int64)))
        return json.loads(bytes(self._broadcast(torch.empty(size, dtype=torch.uint8)).tolist()))
