"""New weights in the middle of generations: which version sampled each token, what its probability was, what it cost.

A real engine, verl's server, refresh and client; the weights come from a folder, not from a trainer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

from tests.live import stock_job
from tests.live.refresh_scene import BEFORE_TOK, LIMIT_TOK, PROMPTS, WAYS

SCENE = Path(__file__).with_name("refresh_scene.py")
LIMIT_S = 400.0
EXACT = 1e-5


def make(folder: Path) -> None:
    """The tiny policy, and the same one moved by as much as some hundred steps would move it."""
    import torch

    from libra.backends.live.environment import open_environment
    from libra.backends.live.tiny.policy import load_policy, make_policy

    make_policy(folder / "model", [open_environment({"workload": "dapo-math"})], seed=0, steps=20)
    model, _ = load_policy(folder / "model")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std() * torch.randn_like(parameter)
    shutil.copytree(folder / "model", folder / "other")
    model.save_pretrained(folder / "other")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("refresh")
    make(found)
    env, lines, _ = stock_job.guide("separate_async")
    own = [f"{key}={value}" for key, value in stock_job.own_settings(found, "separate_async").items()]
    (found / "lines.json").write_text(json.dumps([*own, *(line for line in lines if "ray_" not in line)]))
    path = os.pathsep.join([str(SCENE.parent), str(stock_job.ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, SCENE, found], capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=os.environ | env | {"PYTHONPATH": path, "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-8_000:]
    return found


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "found.json").read_text())


@pytest.fixture(scope="module")
def policies(folder: Path) -> list[Any]:
    from libra.backends.live.tiny.policy import load_policy

    return [load_policy(folder / name)[0].eval() for name in ("model", "other")]


@pytest.mark.parametrize("way", WAYS)
def test_every_token_has_the_version_that_sampled_it(way: str, found: dict[str, Any]) -> None:
    old, new = found[way]["versions"]
    assert len(found[way]["turns"]) == PROMPTS
    for turn in found[way]["turns"]:
        (first, before_tok), (second, after_tok) = turn["spans"]
        assert (first, second) == (old, new)
        assert before_tok >= BEFORE_TOK
        assert before_tok + after_tok == len(turn["tokens"]) == len(turn["log_probs"]) == LIMIT_TOK
        assert turn["steps"] == [old, new]


def gaps(turn: dict[str, Any], policies: list[Any], *, old_cache: bool) -> list[float]:
    """Largest distance from the version's own model, of the tokens before the refresh and of those after it.

    With `old_cache` the new model sees the old one's keys and values of all tokens that had been through a pass.
    """
    import torch

    (_, before_tok), _ = turn["spans"]
    ids = torch.tensor([turn["prompt"] + turn["tokens"]])
    seen_tok = len(turn["prompt"]) + before_tok - 1
    with torch.no_grad():
        old = policies[0](ids).logits[0]
        if old_cache:
            cache = policies[0](ids[:, :seen_tok], use_cache=True).past_key_values
            new = torch.cat([old[:seen_tok], policies[1](ids[:, seen_tok:], past_key_values=cache).logits[0]])
        else:
            new = policies[1](ids).logits[0]
    expected = torch.cat([old[:seen_tok], new[seen_tok:]]).log_softmax(-1)[len(turn["prompt"]) - 1 : -1]
    picked = expected.gather(1, torch.tensor(turn["tokens"])[:, None])[:, 0]
    away = (picked - torch.tensor(turn["log_probs"])).abs()
    return [float(away[:before_tok].max()), float(away[before_tok:].max())]


@pytest.mark.parametrize("way", WAYS)
def test_each_part_has_the_probabilities_of_its_version(way: str, found: dict[str, Any], policies: list[Any]) -> None:
    """Exactly; with the KV cache kept, of the new weights on the old ones' keys and values."""
    for turn in found[way]["turns"]:
        assert max(gaps(turn, policies, old_cache=way == "keep_kv")) <= EXACT


def test_a_kept_cache_gives_other_probabilities_than_the_new_weights_alone(
    found: dict[str, Any], policies: list[Any]
) -> None:
    for turn in found["keep_kv"]["turns"]:
        before, after = gaps(turn, policies, old_cache=False)
        assert before <= EXACT
        assert after > 100 * EXACT


@pytest.mark.parametrize("way", WAYS)
def test_what_is_prefilled_again(way: str, found: dict[str, Any]) -> None:
    """All the context under way, or none of it; the books agree with the engine's own passes."""
    turns = found[way]["turns"]
    once_tok = sum(len(turn["prompt"]) + len(turn["tokens"]) - 1 for turn in turns)
    again_tok = sum(len(turn["prompt"]) + turn["spans"][0][1] for turn in turns)
    refilled_tok = sum(turn["refilled_tok"] for turn in turns)
    assert refilled_tok == (0 if way == "keep_kv" else again_tok)
    assert abs(found[way]["scheduled_tok"] - once_tok - refilled_tok) <= PROMPTS
