"""A live cell as a verl job: the policy's folder, the tasks as parquet, Libra's settings, and verl's configuration."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from libra.backends.live.environment import OPENER, EnvironmentOptions
from libra.backends.live.options import LiveOptions
from libra.clusters.live import LiveCluster
from libra.core.events import PipelineSpec
from libra.core.hardware import Cluster
from libra.cost.memory import USABLE_SHARE
from libra.integrations.settings import Settings
from libra.results.cell import Cell
from libra.workloads.environments.base import Environment, Split, Task

MAX_PROMPT_TOK = 256
"""Of generated tasks; prepared ones have 2,048."""
PREPARED_PROMPT_TOK = 2_048
TRANSFER_MODULES = {"gloo": "libra.integrations.verl.gloo_checkpoint", "nccl": ""}


@dataclass(frozen=True)
class Job:
    """What `arguments` needs. `folder` holds everything that the job reads and writes."""

    folder: Path
    model: Path
    cluster: Cluster
    live: LiveCluster
    options: LiveOptions
    pipeline: PipelineSpec
    learning_rate: float
    max_prompt_tok: int
    max_response_tok: int
    seed: int
    resume: Path | None = None
    """A complete checkpoint to go on from."""

    @property
    def settings_file(self) -> Path:
        return self.folder / "libra.json"

    @property
    def max_context_tok(self) -> int:
        return self.max_prompt_tok + self.max_response_tok


def write_settings(
    job: Job, cell: Cell, environment: EnvironmentOptions, profile: Path, records: Path, plugins: tuple[Path, ...]
) -> None:
    """The file that verl's processes find everything through."""
    options = job.options
    settings = Settings(
        policy=cell.policy,
        options=cell.section("policy"),
        cluster=_absolute(cell.cluster),
        model=_absolute(cell.model),
        out=str(records),
        batch=options.prompts * options.samples,
        group_size=options.samples,
        num_steps=options.num_steps,
        max_context_tok=job.max_context_tok,
        pipeline=job.pipeline,
        plugins=tuple(str(each.resolve()) for each in plugins),
        profile=str(profile),
        environment=OPENER,
        environment_options=msgspec.to_builtins(environment),
        poll_s=0.2,
        logprob_check_every=options.logprob_check_every,
        telemetry_s=options.telemetry_s,
        shuffle_rewards=options.rewards == "shuffled",
        on_refresh=options.on_refresh,
        resume=str(job.resume or ""),
        router_class="libra.integrations.verl.router.LibraRouter",
    )
    job.settings_file.write_bytes(msgspec.json.format(msgspec.json.encode(settings)))


def _absolute(name_or_path: str) -> str:
    """verl's processes run in another folder."""
    return str(Path(name_or_path).resolve()) if name_or_path.endswith(".toml") else name_or_path


def write_tasks(job: Job, environment: Environment) -> None:
    """`train.parquet` and `held_out.parquet` in verl's form; each row carries its task as JSON."""
    import pandas as pd

    splits: tuple[Split, ...] = ("train", "held_out")
    for split in splits:
        tasks = environment.tasks(split)
        if split == "held_out":
            tasks = tasks[: job.options.test_tasks]
        rows = [_row(environment.name, task) for task in tasks]
        pd.DataFrame(rows).to_parquet(job.folder / f"{split}.parquet")


def _row(name: str, task: Task) -> dict[str, Any]:
    return {
        "data_source": name,
        "agent_name": "libra_environment",
        "prompt": [{"role": "user", "content": task.prompt}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"task_id": task.id, "task": msgspec.json.encode(task).decode()},
    }


def arguments(job: Job) -> list[str]:
    """Hydra overrides for `python -m libra.integrations.verl.main`."""
    found = {**_algorithm(job), **_engines(job), **_trainer(job), **_run(job)}
    return [f"{key}={_text(value)}" for key, value in found.items()]


def _algorithm(job: Job) -> dict[str, Any]:
    """GRPO on the engines' own log-probabilities: the ratio is that of the trained policy to the one that sampled."""
    return {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.bypass_mode": True,
        "actor_rollout_ref.actor.use_kl_loss": False,
        "actor_rollout_ref.actor.optim.lr": job.learning_rate,
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
        "actor_rollout_ref.actor.ppo_mini_batch_size": job.options.prompts,
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.rollout.n": job.options.samples,
        "data.train_batch_size": job.options.prompts,
    }


def _engines(job: Job) -> dict[str, Any]:
    live, rollout = job.live, "actor_rollout_ref.rollout"
    found = {
        f"{rollout}.name": "vllm",
        f"{rollout}.dtype": live.dtype,
        f"{rollout}.enforce_eager": live.platform == "cpu",
        f"{rollout}.max_num_seqs": live.max_num_seqs,
        f"{rollout}.max_model_len": job.max_context_tok,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.load_format": "auto",
        f"{rollout}.free_cache_engine": False,
        f"+{rollout}.enable_sleep_mode": False,
        f"{rollout}.calculate_log_probs": True,
        f"{rollout}.disable_log_stats": job.options.telemetry_s == 0,
        f"{rollout}.nnodes": 1,
        f"{rollout}.n_gpus_per_node": 1,
        f"{rollout}.router_config_path": job.settings_file,
        f"{rollout}.agent.num_workers": 1 if live.platform == "cpu" else 8,
        f"+{rollout}.agent.agent_loop_manager_class": "libra.integrations.verl.agent_loop.LibraAgentLoopManager",
        f"{rollout}.checkpoint_engine.backend": live.weight_transfer,
        f"{rollout}.val_kwargs.temperature": 1.0,
        f"{rollout}.val_kwargs.do_sample": True,
    }
    if module := TRANSFER_MODULES[live.weight_transfer]:
        found[f"{rollout}.checkpoint_engine.custom_backend_module"] = module
        found[f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes"] = 64
    if live.weight_transfer == "nccl":  # engines die and come back, so no group outlives a transfer
        found[f"+{rollout}.checkpoint_engine.engine_kwargs.nccl.rebuild_group"] = True
    if live.kv_cache_mb:
        found[f"+{rollout}.engine_kwargs.vllm.kv_cache_memory_bytes"] = live.kv_cache_mb << 20
    if live.platform == "cpu":
        found[f"+{rollout}.engine_kwargs.vllm.block_size"] = 32  # vLLM's CPU kernels take multiples of 32
    else:
        found[f"{rollout}.gpu_memory_utilization"] = USABLE_SHARE  # what the planner counts on; verl's own is 0.5
    return found


def _trainer(job: Job) -> dict[str, Any]:
    live, actor = job.live, "actor_rollout_ref.actor"
    engine = _megatron(live) if live.trainer == "megatron" else _fsdp2(live)
    return engine | {
        "actor_rollout_ref.hybrid_engine": False,
        "actor_rollout_ref.model.path": job.model,
        "+actor_rollout_ref.model.override_config.attn_implementation": live.attention,
        f"{actor}.use_torch_compile": live.platform != "cpu",
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": max(live.micro_batch_tok, job.max_context_tok),
        "trainer.v1.trainer_mode": "libra",
        "trainer.v1.separate_async.parameter_sync_step": 1,
        "trainer.v1.separate_async.num_warmup_batches": max(1, job.pipeline.staleness),
        "trainer.v1.sampler.max_off_policy_threshold": job.pipeline.staleness + 1,
        "trainer.v1.sampler.max_off_policy_strategy": "wait",
    }


def _fsdp2(live: LiveCluster) -> dict[str, Any]:
    """In float32 nothing may be cast: by default FSDP computes in bfloat16, whatever the weights are."""
    actor = "actor_rollout_ref.actor"
    exact = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"
    precision = {f"+{actor}.fsdp_config.mixed_precision": exact} if live.dtype == "float32" else {}
    return precision | {f"{actor}.strategy": "fsdp2", f"{actor}.fsdp_config.dtype": live.dtype}


def _megatron(live: LiveCluster) -> dict[str, Any]:
    """With the distributed optimizer, by verl's default, and mbridge, which it requires; the layout is the plan's."""
    found = {
        "model_engine": "megatron",
        "actor_rollout_ref.actor.megatron.vanilla_mbridge": True,
        "actor_rollout_ref.actor.optim.use_checkpoint_opt_param_scheduler": True,
    }
    if live.platform == "cpu":
        found["actor_rollout_ref.model.external_lib"] = "libra.integrations.verl.cpu.megatron"
    return found


def _run(job: Job) -> dict[str, Any]:
    options, cpu = job.options, job.live.platform == "cpu"
    found: dict[str, Any] = {
        "trainer.device": job.live.platform,
        "trainer.nnodes": job.cluster.num_nodes,
        "trainer.n_gpus_per_node": job.cluster.gpus_per_node,
        "trainer.total_training_steps": options.num_steps,
        "trainer.total_epochs": 1_000_000,
        "trainer.val_before_train": options.test_every > 0,
        "trainer.test_freq": options.test_every or -1,
        "trainer.save_freq": options.save_every or -1,
        "trainer.resume_mode": "resume_path" if job.resume else "disable",
        "trainer.max_actor_ckpt_to_keep": 2,  # the newest lacks our part for a moment
        "trainer.logger": ["file"],
        "trainer.project_name": "libra",
        "trainer.experiment_name": job.folder.name,
        "trainer.default_local_dir": job.folder / "checkpoints",
        **({"trainer.resume_from_path": job.resume} if job.resume else {}),
        "data.train_files": job.folder / "train.parquet",
        "data.val_files": job.folder / "held_out.parquet",
        "data.max_prompt_length": job.max_prompt_tok,
        "data.max_response_length": job.max_response_tok,
        "data.dataloader_num_workers": 0,
        "data.seed": job.seed,
        "reward.num_workers": 1,
    }
    if cpu:
        found |= {
            "+ray_kwargs.ray_init.num_gpus": job.cluster.num_gpus,
            "ray_kwargs.ray_init.num_cpus": 256,  # verl asks ten cores beside each device
            "+ray_kwargs.ray_init.include_dashboard": False,
            "+ray_kwargs.ray_init.object_store_memory": 256 << 20,
        }
    return found


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, bool | list) else str(value)
