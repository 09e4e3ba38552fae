"""A live cell becomes a verl job: data decides what differs between a CPU and a GPU cluster."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from libra.backends.live.backend import _environment, _runtime_env
from libra.backends.live.checks import check_model
from libra.backends.live.curve import METRICS, keep_metrics, read_curve
from libra.backends.live.environment import environment_spec
from libra.backends.live.job import Job, arguments
from libra.backends.live.options import LiveOptions
from libra.clusters import load_cluster
from libra.clusters.live import load_live
from libra.core.errors import ConfigError
from libra.core.events import PipelineSpec

MEGATRON = str(Path(__file__).resolve().parents[3] / "data/live/cpu3.toml")


def overrides(cluster: str, folder: Path, **options: object) -> dict[str, str]:
    job = Job(
        folder, folder / "model", load_cluster(cluster), load_live(cluster), LiveOptions(**options),
        PipelineSpec("async", staleness=2), 1e-3, 256, 512, 0,
    )  # fmt: skip
    return dict(text.split("=", 1) for text in arguments(job))


def test_the_algorithm_is_the_same_on_a_cpu_and_on_48_gpus(tmp_path: Path) -> None:
    cpu, gpu = overrides("cpu2", tmp_path), overrides("a800x48", tmp_path)
    actor = "actor_rollout_ref.actor"
    for part in ("algorithm.", f"{actor}.optim.", f"{actor}.ppo_mini", "data.train_batch"):
        chosen = {key: value for key, value in cpu.items() if key.startswith(part)}
        assert chosen
        assert chosen == {key: value for key, value in gpu.items() if key.startswith(part)}
    assert (cpu["trainer.device"], gpu["trainer.device"]) == ("cpu", "cuda")
    assert gpu["actor_rollout_ref.rollout.checkpoint_engine.backend"] == "nccl"
    assert cpu["actor_rollout_ref.rollout.checkpoint_engine.backend"] == "gloo"


def test_a_cluster_chooses_the_trainer_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "sharded.toml").write_text(Path(MEGATRON).read_text().replace('trainer = "megatron"\n', ""))
    sharded, megatron = overrides(str(tmp_path / "sharded.toml"), tmp_path), overrides(MEGATRON, tmp_path)
    actor = "actor_rollout_ref.actor"
    assert sharded[f"{actor}.strategy"] == "fsdp2"
    assert megatron["model_engine"] == "megatron"
    differ = {key for key in sharded.keys() | megatron.keys() if sharded.get(key) != megatron.get(key)}
    assert differ == {
        "model_engine",
        "actor_rollout_ref.model.external_lib",
        f"{actor}.strategy",
        f"+{actor}.fsdp_config.mixed_precision",
        f"{actor}.fsdp_config.dtype",
        f"{actor}.megatron.vanilla_mbridge",
        f"{actor}.optim.use_checkpoint_opt_param_scheduler",
    }


def test_megatron_on_a_gpu_has_no_stand_ins(tmp_path: Path) -> None:
    text = Path(MEGATRON).read_text()
    changed = text.replace('"cpu"', '"cuda"').replace('"float32"', '"bfloat16"')
    (tmp_path / "gpu.toml").write_text(changed)
    found = overrides(str(tmp_path / "gpu.toml"), tmp_path)
    assert found["model_engine"] == "megatron"
    assert not [key for key in found if "external_lib" in key]


def test_megatron_has_one_precision_on_each_platform(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(Path(MEGATRON).read_text().replace('"float32"', '"bfloat16"'))
    with pytest.raises(ConfigError, match="trains in float32 on platform cpu"):
        load_live(tmp_path / "cluster.toml")


def test_one_optimizer_step_a_batch_on_the_engines_own_log_probabilities(tmp_path: Path) -> None:
    found = overrides("cpu2", tmp_path, prompts=4, samples=8)
    assert found["data.train_batch_size"] == found["actor_rollout_ref.actor.ppo_mini_batch_size"] == "4"
    assert found["actor_rollout_ref.rollout.n"] == "8"
    assert found["actor_rollout_ref.actor.ppo_epochs"] == "1"
    assert found["algorithm.rollout_correction.bypass_mode"] == "true"
    assert found["actor_rollout_ref.rollout.calculate_log_probs"] == "true"


def test_the_staleness_bound_reaches_the_sampler(tmp_path: Path) -> None:
    found = overrides("cpu2", tmp_path)
    assert found["trainer.v1.sampler.max_off_policy_threshold"] == "3"
    assert found["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    assert found["trainer.v1.separate_async.num_warmup_batches"] == "2"


def test_a_cluster_without_a_live_section_can_only_be_simulated() -> None:
    with pytest.raises(ConfigError, match=r"\[live\] section"):
        load_live("h100x64")


def test_a_workload_without_an_environment_can_only_be_simulated() -> None:
    with pytest.raises(ConfigError, match="dapo-math"):
        environment_spec("fixed-length")


def test_a_model_folder_needs_weights_and_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config"):
        check_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no tokenizer"):
        check_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    check_model(tmp_path)


def test_the_curve_joins_training_and_evaluation_by_step(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text(
        '{"step": 0, "data": {"val-core/dapo-math/reward/mean@1": 0.25}}\n'
        '{"step": 1, "data": {"critic/score/mean": 0.5, "actor/grad_norm": 2.0, "other": 1}}\n{"step": 2, "da'
    )
    assert read_curve(tmp_path) == [
        {"step": 0, "held_out_reward": 0.25},
        {"step": 1, "train_reward": 0.5, "grad_norm": 2.0},
    ]


def test_what_came_after_the_checkpoint_leaves_the_curve(tmp_path: Path) -> None:
    for start, upto in ((0, -1), (2, 2), (3, 3)):
        keep_metrics(tmp_path, upto)
        lines = [{"step": step, "data": {"critic/score/mean": float(start)}} for step in range(start + 1, start + 4)]
        (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [(row["step"], row["train_reward"]) for row in read_curve(tmp_path)] == [
        (1, 0.0), (2, 0.0), (3, 2.0), (4, 3.0), (5, 3.0), (6, 3.0),
    ]  # fmt: skip


def test_what_outlives_a_job_on_gpus_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's Ray is found by its own folder; workers on other nodes have theirs."""
    monkeypatch.setattr(tempfile, "tempdir", "/common")
    monkeypatch.setenv("RAY_TMPDIR", "/rays")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    gpu, cpu = _environment("cuda", tmp_path), _environment("cpu", tmp_path)
    assert gpu["RAY_TMPDIR"] == "/rays"
    assert gpu["TORCHINDUCTOR_CACHE_DIR"].startswith("/common/torchinductor_")
    assert "RAY_TMPDIR" not in cpu
    assert "RAY_TMPDIR" not in _runtime_env(gpu)
    assert "RAY_ADDRESS" not in _runtime_env(cpu)


def test_engines_keep_statistics_unless_nobody_reads_them(tmp_path: Path) -> None:
    name = "actor_rollout_ref.rollout.disable_log_stats"
    assert overrides("cpu2", tmp_path)[name] == "false"
    assert overrides("a800x48", tmp_path, telemetry_s=0)[name] == "true"
