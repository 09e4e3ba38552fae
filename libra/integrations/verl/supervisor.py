"""Restarts engines that died, while the run goes on: a thread beside verl's trainer, which has no such thing.

The router's actor says which instances were lost. Their actors are ended, a replica of the same size takes the place,
gets the trainer's weights, and only then takes turns again. The trainer lets go of `lock` while it only waits.
What cannot be replaced (the router, agent-loop workers, the last engine) ends the job, which would wait for ever; a
checkpoint is where it goes on. So does an environment or reward that fails for every trajectory, or a trajectory that
never ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.placement_group import remove_placement_group

LOOK_S = 1.0
TRIES, PAUSE_S = 5, 5.0
ANSWER_S = 30.0
"""An actor's event loop answers within a second also while its engine works."""
STALL_S = 3600.0
"""A trainer that waits so long without a word of any trajectory waits for ever: no turn or tool call is longer."""
logger = logging.getLogger(__name__)


class Supervisor(threading.Thread):
    """`trainer` is Libra's; `replicas` maps instances to verl's replicas."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(name="libra-supervisor", daemon=True)
        self.lock = threading.Lock()
        self._trainer = trainer
        manager = trainer.standalone_server_manager
        self._replicas = {each.id: replica for each, replica in
                          zip(trainer.plan.instances, manager.rollout_replicas, strict=True)}  # fmt: skip
        self._over = threading.Event()
        self._waits_since_s: float | None = None

    def run(self) -> None:
        try:
            while not self._over.wait(LOOK_S):
                for instance in ray.get(self._trainer.router.take_lost.remote()):
                    self._try_restart(instance)
                self._look_at_workers()
                if failure := ray.get(self._trainer.router.take_failure.remote()) or self._stall():
                    _end_job(failure)
        except Exception as error:
            if not self._over.is_set():
                _end_job(f"{type(error).__name__}: {error}")

    def _stall(self) -> str | None:
        """Why the trainer would wait for ever, if it would: it holds `lock` whenever it does anything else."""
        now_s = time.monotonic()
        if self.lock.locked():
            self._waits_since_s = None
            return None
        if self._waits_since_s is None:
            self._waits_since_s = now_s
        quiet_s = min(now_s - self._waits_since_s, ray.get(self._trainer.router.quiet_s.remote()))
        return f"TimeoutError: no trajectory has moved for {quiet_s:.0f} s" if quiet_s > STALL_S else None

    def _look_at_workers(self) -> None:
        """Raises `RayActorError` for an agent-loop worker that died, and its trajectories with it."""
        manager = getattr(self._trainer, "agent_loop_manager", None)
        answers = [worker.__ray_ready__.remote() for worker in manager.agent_loop_workers] if manager else []
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=LOOK_S) if answers else ([], [])
        ray.get(ready)

    def _try_restart(self, instance: int) -> None:
        """Ray gives a dead engine's devices back a moment after its actors' end, so the first try may find none."""
        for number in range(1, TRIES + 1):
            try:
                return self._restart(instance)
            except Exception as error:
                say = logger.exception if number == TRIES else logger.warning
                say("instance %d is not up again after try %d of %d: %s", instance, number, TRIES, error)
            if self._over.wait(PAUSE_S):
                return
        logger.error("instance %d stays down", instance)
        status = ray.get(self._trainer.router.get_status.remote())
        if not status["active_servers"]:
            _end_job("RuntimeError: no engine is left, and none could be started")

    def stop(self) -> None:
        self._over.set()

    def drop_dead(self) -> int:
        """Take engines that no longer answer out of the weight refresh, and tell the router; how many are left."""
        manager = self._trainer.standalone_checkpoint_manager
        for replica in list(manager.replicas):
            if not _lives(replica):
                manager.remove_replicas([replica])
                ray.get(self._trainer.router.server_lost.remote(replica.server_address))
        return len(manager.replicas)

    def _restart(self, instance: int) -> None:
        trainer, dead = self._trainer, self._replicas[instance]
        trainer.standalone_checkpoint_manager.remove_replicas([dead])
        _end(dead)
        fresh = trainer.standalone_server_manager.replica(dead.world_size)
        asyncio.run(fresh.init_standalone())
        with self.lock:
            asyncio.run(self._refresh(fresh))
        self._replicas[instance] = fresh
        ray.get(trainer.router.revive.remote(instance, fresh.server_address, fresh.server_handle))

    async def _refresh(self, fresh: Any) -> None:
        """All engines get the present weights: verl refreshes them together."""
        manager = self._trainer.standalone_checkpoint_manager
        manager.add_replicas([fresh])
        await manager.update_weights(self._trainer.weights_version)


def _end_job(reason: str) -> None:
    """The job's own process dies; its end is what the launcher waits for. Nothing else would wake the trainer."""
    print(f"the job cannot go on\n{reason}", flush=True)
    os._exit(1)


def _lives(replica: Any) -> bool:
    """Whether the replica's actor answers and its engine core runs."""
    try:
        return not ray.get(
            replica.server_handle.__ray_call__.remote(lambda server: server.engine.errored), timeout=ANSWER_S
        )
    except (RayActorError, GetTimeoutError):
        return False


def _end(replica: Any) -> None:
    """End a replica's actors and give its devices back."""
    for actor in (*replica.servers, *replica.workers):
        with suppress(Exception):  # dead already
            ray.kill(actor)
    for group in replica.resource_pool.pgs or ():
        with suppress(Exception):
            remove_placement_group(group)
