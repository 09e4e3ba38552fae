"""A verl job as its user has it, with the lines of docs/verl.md; they are read from the guide, so it is what runs.

Two modes of verl's trainer: `separate_async` on cores, `sync` on one GPU.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from libra.backends.live.process import MARK, end_all
from tests.live import caller

ROOT = Path(__file__).resolve().parents[2]
Mode = Literal["separate_async", "sync"]
STEPS, PROMPTS, SAMPLES = 2, 2, 4
WARMUP_STEPS = 40
"""Three seconds; the model then calls its tool nearly always."""
LIMIT_S = 500.0
REWARD = """def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return float(ground_truth in solution_str)
"""


def blocks(section: str) -> list[str]:
    """Fenced blocks of a section of the guide."""
    page = (ROOT / "docs/verl.md").read_text()
    return re.findall(r"```\w*\n(.*?)```", page.split(f"## {section}\n")[1].split("\n## ")[0], flags=re.DOTALL)


def guide(mode: Mode) -> tuple[dict[str, str], list[str], dict[str, Any]]:
    """Environment, settings and `libra.yaml` that the guide names for this job."""
    lines, separate, yaml, *_ = blocks("The lines")
    variables, cpu = blocks("On a machine without a GPU")
    words = shlex.split(lines if mode == "sync" else lines + separate + variables + cpu)
    env = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    return env, [word for word in words if not re.match(r"[A-Z_]+=", word)], msgspec.yaml.decode(yaml)


def own_settings(folder: Path, mode: Mode) -> dict[str, Any]:
    """What the user's job says beside the guide's lines: data, model, reward, tool, algorithm, sizes."""
    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    pool = {f"{rollout}.nnodes": 1, f"{rollout}.n_gpus_per_node": 2} if mode == "separate_async" else {}
    return pool | {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.model.path": folder / "model",
        f"{actor}.ppo_mini_batch_size": PROMPTS,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": 2048,
        f"{rollout}.name": "vllm",
        f"{rollout}.n": SAMPLES,
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.max_model_len": 512,
        f"{rollout}.max_num_seqs": 32,
        f"{rollout}.load_format": "auto",
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.agent.default_agent_loop": "tool_agent",
        f"{rollout}.multi_turn.function_tool_path": folder / "tools.py",
        f"{rollout}.multi_turn.max_assistant_turns": 2,
        "data.train_files": folder / "towns.parquet",
        "data.val_files": folder / "towns.parquet",
        "data.train_batch_size": PROMPTS,
        "data.max_prompt_length": 128,
        "data.max_response_length": 128,
        "data.dataloader_num_workers": 0,
        "data.seed": 0,
        "reward.custom_reward_function.path": folder / "reward.py",
        "reward.num_workers": 1,
        "trainer.v1.trainer_mode": mode,
        "trainer.v1.separate_async.parameter_sync_step": 1,
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.total_training_steps": STEPS,
        "trainer.total_epochs": 10,
        "trainer.val_before_train": False,
        "trainer.logger": '["file"]',
        "trainer.rollout_data_dir": folder / "rollouts",
        "trainer.resume_mode": "disable",
    }


def write_files(folder: Path, mode: Mode, yaml: dict[str, Any]) -> None:
    """Model, data, tool, reward, and `libra.yaml` with the guide's keys and this job's values."""
    import pandas as pd

    caller.make_caller(folder / "model", WARMUP_STEPS)
    rows = [
        {
            "data_source": "towns",
            "prompt": [{"role": "user", "content": caller.question(town)}],
            "reward_model": {"style": "rule", "ground_truth": town[::-1]},
            "extra_info": {"index": number},
        }
        for number, town in enumerate(caller.TOWNS)
    ]
    pd.DataFrame(rows).to_parquet(folder / "towns.parquet")
    (folder / "tools.py").write_text(caller.TOOL)
    (folder / "reward.py").write_text(REWARD)
    (folder / "out").mkdir()
    mine = {
        "cluster": str(ROOT / "tests/data/live/cpu4.toml"), "model": "tiny", "out": str(folder / "out"),
        "batch": PROMPTS * SAMPLES, "group_size": SAMPLES, "num_steps": STEPS, "max_context_tok": 512,
        "instances": [1, 1] if mode == "separate_async" else [1],
    }  # fmt: skip
    assert mine.keys() < yaml.keys()
    if mode == "separate_async":  # the guide's option for agents that call tools, as this job's do
        mine["bounds_tok"] = [64, 512]
    (folder / "libra.yaml").write_bytes(msgspec.yaml.encode(yaml | mine))


def run_verl(folder: Path, mode: Mode = "separate_async", leave_out: Sequence[str] = ()) -> None:
    """The job to its end; nothing of it is left running. Raises `AssertionError` with its log when it fails."""
    env, lines, yaml = guide(mode)
    write_files(folder, mode, yaml)
    found = [line.replace("/path/to/libra.yaml", str(folder / "libra.yaml")) for line in lines]
    kept = [line for line in found if not any(name in line for name in leave_out)]
    mine = [f"{key}={value}" for key, value in own_settings(folder, mode).items()]
    mark = uuid.uuid4().hex
    everything = {**os.environ, **env, "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"), MARK: mark}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "verl.trainer.main_ppo", *mine, *kept], cwd=folder, env=everything,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(LIMIT_S)
        finally:
            end_all(mark, process)
    assert process.returncode == 0, (folder / "log").read_text(errors="replace")[-8000:]


def steps_of(folder: Path) -> list[int]:
    """Training steps in verl's own log."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "actor/grad_norm" in line["data"]]


def trained(folder: Path) -> list[tuple[str, int]]:
    """(question, sample) of what was trained, from verl's own dump of each step's batch."""
    found = []
    for step in range(1, STEPS + 1):
        for line in (folder / "rollouts" / f"{step}.jsonl").read_text().splitlines():
            row = json.loads(line)
            found.append((row["input"], int(row["uid"].split("_")[1])))
    return found
