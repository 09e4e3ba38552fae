"""Jobs for GPUs, as far as a machine without one can judge them: verl's own configuration takes every key of them.

hydra refuses a key that verl's defaults lack, and a `+key` that they have; verl's dataclasses refuse what was appended
but is no field of theirs.
"""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException

from libra.backends.live.job import Job, arguments
from libra.backends.live.options import LiveOptions
from libra.clusters import load_cluster
from libra.clusters.live import load_live
from libra.core.commands import ApplyPlan
from libra.core.errors import CapacityError
from libra.core.events import PipelineSpec, RunStart
from libra.core.plan import Plan
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.cost.memory import USABLE_SHARE
from libra.integrations.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PROFILE = tuple(
    Trajectory(f"p{number}", number, 0, 64, (Turn(100, ToolReturn("search", 50, "ok", 0.1)), Turn(40 * number + 1)))
    for number in range(16)
)


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The cluster file that docs/gpu.md shows."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/gpu.md").read_text(), flags=re.DOTALL)
    path = tmp_path_factory.mktemp("clusters") / "two_gpus.toml"
    path.write_text(text)
    return str(path)


def overrides(cluster: str) -> list[str]:
    folder = Path("/a/folder")
    job = Job(
        folder, folder / "model", load_cluster(cluster), load_live(cluster), LiveOptions(test_every=0),
        PipelineSpec("async"), 1e-6, 256, 768, 0,
    )  # fmt: skip
    return arguments(job)


def composed(lines: list[str]) -> Any:
    """verl's configuration with these lines, as `python -m verl.trainer.main_ppo` composes it."""
    (package,) = find_spec("verl").submodule_search_locations
    with initialize_config_dir(str(Path(package) / "trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=lines)


def plan_for(cluster: str, model: str) -> Plan:
    settings = Settings(
        policy="libra", cluster=cluster, model=model, out="out", batch=128, group_size=16, num_steps=4,
        max_context_tok=1024,
    )  # fmt: skip
    run = settings.run_start()
    answer = settings.build_policy().decide(
        RunStart(0.0, run.cluster, run.model, run.pipeline, run.batch, run.group_size, 4, 1024, PROFILE)
    )
    (command,) = (each for each in answer if isinstance(each, ApplyPlan))
    return command.plan


@pytest.mark.parametrize("cluster", ["two_gpus", "a800x48"])
def test_verl_knows_every_key_of_a_job_for_gpus(cluster: str, request: pytest.FixtureRequest) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    path = request.getfixturevalue(cluster) if cluster == "two_gpus" else cluster
    config = composed(overrides(path))
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert omega_conf_to_dataclass(rollout).checkpoint_engine.backend == "nccl"
    assert omega_conf_to_dataclass(actor).strategy == "fsdp2"
    assert (config.trainer.device, rollout.dtype, rollout.enforce_eager) == ("cuda", "bfloat16", False)
    assert config.actor_rollout_ref.model.override_config.attn_implementation == "flash_attention_2"
    assert rollout.gpu_memory_utilization == USABLE_SHARE
    assert omega_conf_to_dataclass(rollout).checkpoint_engine.engine_kwargs["nccl"]["rebuild_group"]
    assert "mixed_precision" not in actor.fsdp_config
    assert "ray_init" not in config.ray_kwargs or "num_gpus" not in config.ray_kwargs.ray_init


@pytest.mark.parametrize("line", ["trainer.v1.no_such_key=1", "+trainer.nnodes=2"])
def test_a_key_that_verl_lacks_or_has_already_would_be_noticed(line: str) -> None:
    with pytest.raises(ConfigCompositionException):
        composed([*overrides("a800x48"), line])


@pytest.mark.parametrize(("cluster", "model"), [("two_gpus", "tiny"), ("a800x48", "qwen3-14b")])
def test_the_plan_fits_the_job(cluster: str, model: str, request: pytest.FixtureRequest) -> None:
    from libra.integrations.verl.trainer import apply_plan

    path = request.getfixturevalue(cluster) if cluster == "two_gpus" else cluster
    plan, config = plan_for(path, model), composed(overrides(path))
    apply_plan(config, plan)
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node >= plan.train.num_gpus
    assert plan.num_gpus <= load_cluster(path).num_gpus
    assert config.actor_rollout_ref.rollout.n_gpus_per_node == max(each.tp for each in plan.instances)


def test_one_gpu_cannot_hold_trainer_and_engine_apart(two_gpus: str, tmp_path: Path) -> None:
    one = tmp_path / "one.toml"
    one.write_text(Path(two_gpus).read_text().replace("gpus_per_node = 2", "gpus_per_node = 1"))
    with pytest.raises(CapacityError):
        plan_for(str(one), "tiny")
