"""verl's trainer with separate pools, on Libra's plan (verl/trainer/ppo/v1/trainer_separate_async.py).

`trainer.v1.trainer_mode=libra`. It asks the router's actor for the plan before anything starts, makes the pools that
the plan names, and tells the actor of each step once its weights are in the engines.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from ray.exceptions import RayActorError, RayTaskError
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_separate_async import HybridEngineMode, PPOTrainerSeparateAsync
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerClient

from libra.core.plan import Plan
from libra.integrations.saved import checkpoints
from libra.integrations.turns import StepDone
from libra.integrations.verl.agent_loop import is_lost
from libra.integrations.verl.logprobs import logprob_gap
from libra.integrations.verl.replicas import PlannedServers
from libra.integrations.verl.router import LibraRouter
from libra.integrations.verl.supervisor import Supervisor

TRAIN_TIMINGS = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
"""What verl times in a step while the training devices work."""


DEATH_SHOWS_S = 2.0
"""After an engine core's end its server says so within a second."""


@register_trainer("libra")
class LibraTrainer(PPOTrainerSeparateAsync):
    """`config.actor_rollout_ref.rollout.router_config_path` names the settings file."""

    def __init__(self, config: DictConfig) -> None:
        path = config.actor_rollout_ref.rollout.router_config_path
        self.router: Any = ray.remote(LibraRouter).options(name="libra_router").remote({}, {"settings": path})
        self.plan: Plan = ray.get(self.router.start.remote())
        apply_plan(config, self.plan)
        super().__init__(config)
        self.parameter_sync_step = config.trainer.v1.separate_async.parameter_sync_step
        self.settings = ray.get(self.router.__ray_call__.remote(lambda actor: actor.settings))
        self.replay_buffer.poll_interval = self.settings.poll_s
        self._keys: tuple[str, ...] = ()
        self._batch: KVBatchMeta | None = None
        self.weights_version = 0
        """Of the trainer's weights: counts the steps behind them."""
        self._save_is_due = False

    def _setup(self) -> None:
        """As upstream (line 148 of 0.9.1), but with engines of the plan's sizes."""
        PPOTrainer._setup(self)
        self.weights_version = self.global_steps
        if self.settings.resume:
            ray.get(self.router.resumed.remote(held_trajectories()))
        self.standalone_server_manager = PlannedServers.create(
            self.config, self.plan, self.router, self.settings.on_refresh
        )
        engine = omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine)
        self.standalone_checkpoint_manager = CheckpointEngineManager(
            engine, self.actor_rollout_wg, self.standalone_server_manager.get_replicas()
        )
        self.current_mode = HybridEngineMode.TRAINER
        self.supervisor = Supervisor(self)
        self.supervisor.lock.acquire()
        self.supervisor.start()

    def on_sample_begin(self) -> None:
        super().on_sample_begin()
        self.supervisor.lock.release()

    def on_sample_end(self) -> None:
        self.supervisor.lock.acquire()
        super().on_sample_end()

    def _validate(self) -> dict[str, float]:
        self.supervisor.lock.release()
        try:
            return super()._validate()
        finally:
            self.supervisor.lock.acquire()

    def get_llm_client(self) -> LLMServerClient:
        return self.standalone_server_manager.get_client(client_cls=LLMServerClient)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        batch = super().step(metrics, timing_raw)
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        self._keys = tuple(dict.fromkeys(key.rsplit("_", 1)[0] for key in real))
        self._batch = batch
        self.weights_version = self.global_steps
        return batch

    def on_step_end(self) -> None:
        if self.settings.pipeline.kind == "barrier":
            self._wait_for_rollout()
        self._refresh_engines()
        every = self.settings.logprob_check_every
        if every and self.global_steps % every == 0:
            self._pending_sync_metrics["libra/logprob_gap_max"] = logprob_gap(self, self._batch)
        timing = self.timing_raw
        done = StepDone(
            self.global_steps - 1,
            self._keys,
            self.global_steps - 1,
            sum(timing.get(name, 0.0) for name in TRAIN_TIMINGS),
            timing.get("update_weights", 0.0),
            timing.get("gen", 0.0),
        )
        ray.get(self.router.step_done.remote(done))
        if self._save_is_due:
            self._save_now()

    def _save_checkpoint(self) -> None:
        """Put off to the step's end, when the router's books hold the step too."""
        self._save_is_due = True

    def _save_now(self) -> None:
        super()._save_checkpoint()
        self._save_is_due = False
        folder = Path(self.config.trainer.default_local_dir)
        ray.get(self.router.save.remote(str(folder / f"global_step_{self.global_steps}")))
        kept = checkpoints(folder)[-self.config.trainer.max_actor_ckpt_to_keep :]
        for path in folder.glob("global_step_*"):
            if path not in kept:
                shutil.rmtree(path)

    def _refresh_engines(self) -> None:
        """New weights for all engines that live; one that dies in the middle of it is left to the supervisor."""
        left = self.supervisor.drop_dead()
        while left:
            try:
                super().on_step_end()
                return
            except (RayActorError, RayTaskError) as error:
                if not is_lost(error):
                    raise
                time.sleep(DEATH_SHOWS_S)
                before, left = left, self.supervisor.drop_dead()
                if left == before:  # no engine died, so a training worker did
                    raise
        self._pending_sync_metrics: dict[str, Any] = {}

    def _wait_for_rollout(self) -> None:
        """The barrier: new weights meet no trajectory under way."""
        buffer = self.replay_buffer
        self.supervisor.lock.release()
        while True:
            buffer._sync_metadata_from_transfer_queue()
            if not buffer.pending_keys["train"] and not buffer.running_keys["train"]:
                break
            time.sleep(buffer.poll_interval)
        self.supervisor.lock.acquire()

    def fit(self, agent_loop_manager: Any) -> None:
        super().fit(agent_loop_manager)
        self.supervisor.stop()
        ray.get(self.router.finish.remote())


def held_trajectories() -> list[str]:
    """Keys of the finished groups' trajectories in verl's queue; unfinished groups are generated again."""
    items = tq.kv_list("train").get("train", {})
    groups = {key for key, tag in items.items() if tag.get("is_prompt") and tag["status"] in ("finished", "failure")}
    keys = [key for key, tag in items.items() if not tag.get("is_prompt") and key.split("_")[0] in groups]
    return sorted({key.rsplit("_", 1)[0] for key in keys})


def apply_plan(config: DictConfig, plan: Plan) -> None:
    """Write a plan's split and parallelism into a job's configuration."""
    layout, actor = plan.train, config.actor_rollout_ref.actor
    with open_dict(config):
        per_node = min(layout.num_gpus, config.trainer.n_gpus_per_node)
        config.trainer.n_gpus_per_node, config.trainer.nnodes = per_node, -(-layout.num_gpus // per_node)
        config.actor_rollout_ref.rollout.nnodes = 1  # each replica makes a pool of its own
        config.actor_rollout_ref.rollout.n_gpus_per_node = max(each.tp for each in plan.instances)
        if actor.strategy == "megatron":
            actor.megatron.tensor_model_parallel_size = layout.tp
            actor.megatron.pipeline_model_parallel_size = layout.pp
            actor.megatron.context_parallel_size = layout.cp
            actor.megatron.expert_model_parallel_size = layout.ep
            actor.megatron.virtual_pipeline_model_parallel_size = layout.vpp if layout.vpp > 1 else None
