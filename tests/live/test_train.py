"""One real run, small but whole: vLLM engine, verl's trainer, a search server, Libra's router; then what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs the live stack: `make live-test`")

from tests.live.leftovers import temporary

STEPS, PROMPTS, SAMPLES = 3, 2, 4
SETTINGS = {
    "live.prompts": PROMPTS,
    "live.samples": SAMPLES,
    "live.warmup_steps": 60,
    "live.test_every": 0,
    "live.logprob_check_every": 1,
    "live.telemetry_s": 0.2,
}


def libra(store: Path, *arguments: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """`libra ...` in this environment."""
    program = "from experiments.cli import main; main()"
    command = [sys.executable, "-c", program, *arguments, "--store", str(store)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def before() -> set[Path]:
    return temporary()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, before: set[Path]) -> Path:
    folder = tmp_path_factory.mktemp("live") / "runs"
    changes = [text for key, value in SETTINGS.items() for text in ("--set", f"{key}={value}")]
    done = libra(folder, "train", "search-r1", "--steps", str(STEPS), *changes)
    logs = "\n".join(path.read_text()[-4000:] for path in folder.glob("cells/*/logs/*/verl.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return folder


@pytest.fixture(scope="module")
def cell(store: Path) -> Path:
    (found,) = (store / "cells").iterdir()
    return found


def test_the_cell_is_done_and_has_the_stores_files(cell: Path) -> None:
    assert json.loads((cell / "status.json").read_bytes())["state"] == "done"
    for name in ("steps.parquet", "trajectories.parquet", "decisions.parquet", "metrics.json", "curve.json"):
        assert (cell / name).is_file()


def test_no_trajectory_is_lost_or_trained_twice(cell: Path) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(cell / "trajectories.parquet").to_pylist()
    assert len({row["trajectory"] for row in rows}) == len(rows)
    assert len({(row["group"], row["sample"]) for row in rows}) == len(rows)
    trained = Counter(row["trained_step"] for row in rows if row["trained_step"] >= 0)
    assert trained == {step: PROMPTS * SAMPLES for step in range(STEPS)}


def test_nothing_older_than_the_bound_was_trained(cell: Path) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(cell / "trajectories.parquet").to_pylist()
    ages = [row["version_trained"] - row["version_start"] for row in rows if row["trained_step"] >= 0]
    assert min(ages) >= 0
    assert max(ages) <= 1


def test_engine_and_trainer_agree_on_log_probabilities(cell: Path) -> None:
    gaps = [row["logprob_gap_max"] for row in json.loads((cell / "curve.json").read_text()) if "logprob_gap_max" in row]
    assert len(gaps) == STEPS
    assert 0 < max(gaps) <= 1e-5


def test_the_same_policy_gives_the_same_commands_on_the_log(store: Path, cell: Path) -> None:
    done = libra(store, "replay", cell.name, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same"]
    assert found["commands"] > STEPS * PROMPTS * SAMPLES


def test_tools_really_answered(cell: Path) -> None:
    from libra.core.events import ToolReturned
    from libra.runtime.replay import decisions

    returns = [event for event, _ in decisions(cell / "events.jsonl.zst") if isinstance(event, ToolReturned)]
    assert {event.tool for event in returns} == {"search"}
    assert any(event.status == "ok" and event.payload_tok > 0 and event.latency_s > 0 for event in returns)


def test_engines_told_of_their_queues_and_caches(cell: Path) -> None:
    import pyarrow.parquet as pq

    rows = pq.read_table(cell / "trajectories.parquet").to_pylist()
    assert all(0 <= row["queue_s"] < row["end_s"] - row["start_s"] for row in rows if row["num_turns"])
    samples = pq.read_table(cell / "engines.parquet").to_pylist()
    assert {row["instance"] for row in samples} == {0}
    assert all(0 <= row["kv_cache_share"] <= 1 and row["prefix_hit_tok"] <= row["prefix_query_tok"] for row in samples)
    times = [row["t_s"] for row in samples]
    assert times == sorted(times)
    assert 0 < samples[-1]["num_queued"] <= sum(row["num_turns"] for row in rows) * 2  # refreshes split turns
    assert max(row["num_running"] for row in samples) > 0


def test_no_temporary_file_is_left(store: Path, before: set[Path]) -> None:
    assert temporary() - before == set()


def test_nothing_is_left_running(store: Path) -> None:
    """Every process of the job carries the mark; ours doesn't."""
    assert "LIBRA_RUN" not in os.environ
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if b"LIBRA_RUN=" in environ and str(store).encode() in environ:
                left.append(entry.name)
    assert left == []
