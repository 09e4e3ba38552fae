"""verl's Megatron engine on a CPU: its probabilities, its steps and its checkpoints, in each kind of parallelism."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("mbridge", reason="needs the live stack: `make live-test`")

ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("megatron_rank.py")
LIMIT_S = 300.0


@dataclass(frozen=True)
class Layout:
    tp: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    deep: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.dp


LAYOUTS = {
    "alone": Layout(),
    "tensor-parallel": Layout(tp=2),
    "pipeline": Layout(pp=2),
    "interleaved pipeline, grouped queries": Layout(pp=2, vpp=2, deep=True),
    "data-parallel": Layout(dp=2),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy, a little trained, so that its weights are none of an initialisation's."""
    from libra.backends.live.environment import open_environment
    from libra.backends.live.tiny.policy import make_policy

    folder = tmp_path_factory.mktemp("policies") / "tiny"
    make_policy(folder, [open_environment({"workload": "dapo-math"})], seed=0, steps=20)
    return folder


@pytest.fixture(scope="module")
def deep(tiny: Path) -> Path:
    """Four layers for two chunks on each stage, and two query heads for each of keys and values; random weights."""
    import torch
    from transformers import Qwen3ForCausalLM

    from libra.backends.live.tiny.policy import load_policy

    model, tokenizer = load_policy(tiny)
    config = model.config
    config.num_hidden_layers, config.layer_types, config.num_attention_heads = 4, ["full_attention"] * 4, 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).float()
    model.save_pretrained(tiny.with_name("deep"))
    tokenizer.save_pretrained(tiny.with_name("deep"))
    return tiny.with_name("deep")


def run(layout: Layout, policy: Path, folder: Path) -> list[dict]:
    """What each rank found. Ranks talk over the loopback device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(layout.world),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    sizes = [str(each) for each in (layout.tp, layout.pp, layout.vpp)]
    numbers = range(layout.world)
    ranks = []
    for number in numbers:
        command = ["nice", "-n", "10", sys.executable, "-W", "ignore", str(RANK), str(policy)]
        with (folder / f"rank{number}.log").open("wb") as log:
            ranks.append(
                subprocess.Popen(
                    [*command, str(folder / f"rank{number}.json"), *sizes],
                    env=env | {"RANK": str(number)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    codes = wait(ranks)
    assert codes == [0] * layout.world, "\n".join((folder / f"rank{each}.log").read_text()[-3000:] for each in numbers)
    return [json.loads((folder / f"rank{number}.json").read_text()) for number in numbers]


def wait(ranks: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes, None for a rank that was still at it when another failed or the time was up: it is ended."""
    deadline = time.monotonic() + LIMIT_S
    try:
        while time.monotonic() < deadline:
            codes = [rank.poll() for rank in ranks]
            if None not in codes or any(codes):
                break
            time.sleep(0.2)
        return codes
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_engine_scores_steps_and_resumes_as_it_should(name: str, tiny: Path, deep: Path, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    found = run(layout, deep if layout.deep else tiny, tmp_path)
    assert {(rank["dp"], rank["chunks"]) for rank in found} == {(layout.dp, layout.vpp)}
    reports = [rank for rank in found if rank["gap"] is not None]
    assert len(reports) == layout.dp
    for rank in reports:
        assert 0 < rank["gap"] <= 1e-5  # nats, against transformers in float32
        assert 0 < rank["gap_after"] <= 1e-5
        assert rank["norm"] == pytest.approx(rank["reference_norm"], rel=1e-5)
    for rank in found:
        # Of the step's length. Adam makes a step of full size of a gradient that is rounding alone.
        assert rank["update_error"] <= 1e-3
        assert rank["loaded"] == rank["saved"] != rank["end"]
        assert rank["resumed_end"] == rank["end"]  # bit by bit, weights and optimizer state
