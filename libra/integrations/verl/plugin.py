"""Loaded by verl at its import in every process: `VERL_USE_EXTERNAL_MODULES=libra.integrations.verl.plugin`.

It checks verl's version, mends one line of it and registers our dynamic schedule; on a GPU it has engines' queues
watched. With `VERL_PLATFORM=cpu` it brings what a CPU lacks: a platform, vLLM's CPU build under the name that verl
looks for, and engines that take new weights in place.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from libra.integrations.verl.version import check_verl


def _accept_flush(logger: logging.Logger) -> None:
    """verl 0.9.1 passes print's `flush` to a logger when training GPUs serve no rollout, and dies of it.

    verl/trainer/ppo/v1/trainer_separate_async.py, line 181.
    """
    inner = logger.info

    def info(message: object, *args: Any, flush: bool = False, **kwargs: Any) -> None:
        inner(message, *args, **kwargs)

    setattr(logger, "info", info)  # noqa: B010 - a method that is replaced on purpose


def _watched_replica() -> type[Any]:
    from libra.integrations.verl.vllm_server import WatchedReplica

    return WatchedReplica


check_verl()
_accept_flush(logging.getLogger("verl.trainer.ppo.v1.trainer_separate_async"))
importlib.import_module("libra.integrations.verl.schedule")
if os.environ.get("VERL_PLATFORM") == "cpu":
    from libra.integrations.verl.cpu import setup

    setup()
else:
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", _watched_replica)
