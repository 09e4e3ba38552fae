"""One cell, really run: equal bytes twice, equal commands on replay, and a row whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from experiments.resolve import Resolver
from experiments.run import build_policy, refresh_metrics, run_cell
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.lock import InUseError
from libra.results.store import Metrics, Store, read_json
from libra.results.tables import read_table
from libra.runtime.event_log import LOG_NAME, read_log
from libra.runtime.perfetto import write_perfetto
from libra.runtime.replay import replay

MakeCell = Callable[..., Cell]
COMPARED = (
    "cell.json",
    "metrics.json",
    "events.jsonl.zst",
    "steps.parquet",
    "trajectories.parquet",
    "decisions.parquet",
)


BESIDE = ("status.json", "provenance.json", "timing.json", "timing_model.json", "workload.json", "logs")
"""Of one run and its machine, or what the sources already say."""


def folder(cell: Cell, store: Store, registry: Registry) -> Path:
    return store.path(cell.identity(Resolver(registry).code(cell)))


def test_a_cell_runs_to_its_results(store: Store, registry: Registry, make_cell: MakeCell) -> None:
    steps: list[tuple[int, int]] = []
    status = run_cell(make_cell(), store, registry, lambda *done: steps.append(done))
    assert (status.state, status.attempts, status.step, status.num_steps) == ("done", 1, 3, 3)
    assert steps == [(1, 3), (2, 3), (3, 3)]
    path = folder(make_cell(), store, registry)
    assert {each.name for each in path.iterdir()} == {*COMPARED, *BESIDE}
    rows = read_table(path, "trajectories")
    assert sorted(rows["trajectory"].to_pylist()) == list(range(24))
    assert sum(rows["generated_tok"].to_pylist()) == 24 * (512 - 64)
    assert read_table(path, "decisions").num_rows == 24 * 2
    assert read_json(path / "metrics.json", Metrics).metrics["steps"] == 3.0


def test_the_same_cell_twice_gives_the_same_bytes(tmp_path: Path, registry: Registry, make_cell: MakeCell) -> None:
    paths = []
    for name in ("a", "b"):
        store = Store(tmp_path / name)
        run_cell(make_cell(), store, registry)
        paths.append(folder(make_cell(), store, registry))
    for name in COMPARED:
        assert (paths[0] / name).read_bytes() == (paths[1] / name).read_bytes(), name


def test_another_process_and_hash_seed_give_the_same_bytes(
    tmp_path: Path, registry: Registry, make_cell: MakeCell, project_root: Path
) -> None:
    store = Store(tmp_path / "a")
    run_cell(make_cell(), store, registry)
    script = (
        "import sys, msgspec; from pathlib import Path; from experiments.run import run_cell\n"
        "from libra.core.registry import Registry; from libra.results.cell import Cell\n"
        "from libra.results.store import Store\n"
        "cell = msgspec.json.decode(sys.argv[1], type=Cell)\n"
        "run_cell(cell, Store(sys.argv[2]), Registry((Path(sys.argv[3]),)))\n"
    )
    command = [sys.executable, "-c", script, msgspec.json.encode(make_cell()).decode(), str(tmp_path / "b")]
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    subprocess.run([*command, str(registry.plugins[0])], check=True, cwd=project_root, env=environment)
    here, there = (folder(make_cell(), Store(tmp_path / name), registry) for name in ("a", "b"))
    for name in COMPARED:
        assert (here / name).read_bytes() == (there / name).read_bytes(), name


def test_replay_gives_the_same_commands_and_a_timeline(
    store: Store, registry: Registry, make_cell: MakeCell, tmp_path: Path
) -> None:
    run_cell(make_cell(), store, registry)
    path = folder(make_cell(), store, registry)
    report = replay(path, lambda: build_policy(make_cell(), registry))
    assert report.same, report.text()
    assert report.num_commands == 1 + 24 * 2
    spans = 24 * 2 + 24 + 3 * 2  # turns, tool calls, steps
    assert write_perfetto(path, tmp_path / "trace.json.gz") == spans


def test_a_done_cell_is_left_alone(store: Store, registry: Registry, make_cell: MakeCell) -> None:
    run_cell(make_cell(), store, registry)
    assert run_cell(make_cell(), store, registry).attempts == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"crash_at": 5}, "RuntimeError: planned crash"), ({"gpus_per_engine": 0}, "GPU")],
)
def test_a_failure_is_a_row(
    store: Store, registry: Registry, make_cell: MakeCell, options: dict[str, int], reason: str
) -> None:
    cell = make_cell(**options)
    status = run_cell(cell, store, registry)
    assert status.state == "failed"
    assert reason in status.reason and "\n" not in status.reason
    path = folder(cell, store, registry)
    assert "Traceback" in (path / "logs" / "attempt_1" / "traceback.txt").read_text()
    assert list(read_log(path / "logs" / "attempt_1" / LOG_NAME))
    assert not (path / "metrics.json").exists() and not (path / "lock").exists()
    assert run_cell(cell, store, registry).attempts == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_marks_the_cell_cancelled(
    number: signal.Signals, store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    def stop(step: int, num_steps: int) -> None:
        os.kill(os.getpid(), number)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_cell(make_cell(), store, registry, stop)
    assert signal.getsignal(signal.SIGTERM) is before
    path = folder(make_cell(), store, registry)
    status = store.status(path.name)
    assert (status.state, status.reason, status.step) == ("cancelled", "interrupted", 1)
    assert not (path / "metrics.json").exists() and not (path / "lock").exists()
    assert run_cell(make_cell(), store, registry).state == "done"


def test_a_cell_that_runs_elsewhere_is_not_touched(store: Store, registry: Registry, make_cell: MakeCell) -> None:
    code = Resolver(registry).code(make_cell())
    with store.claim(make_cell(), code) as other:
        other.start()
        with pytest.raises(InUseError):
            run_cell(make_cell(), store, registry)
        assert store.status(other.id).state == "running"


def test_metrics_of_other_definitions_are_recomputed_without_a_run(
    store: Store, registry: Registry, make_cell: MakeCell
) -> None:
    cell, code = make_cell(), Resolver(registry).code(make_cell())
    run_cell(cell, store, registry)
    file = folder(cell, store, registry) / "metrics.json"
    right = file.read_bytes()
    old = read_json(file, Metrics)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(old, metrics={"x": 1.0}, definitions="old")))
    refresh_metrics(cell, store, code)
    assert file.read_bytes() == right
    file.write_bytes(b"damaged")
    refresh_metrics(cell, store, code)
    assert store.status(cell.identity(code)).state == "failed"


def test_plans_that_nobody_measured_are_noted_with_the_cell(
    store: Store, registry: Registry, make_cell: MakeCell, tmp_path: Path, project_root: Path
) -> None:
    """Round robin trains on half of the GPUs: 80 of 160."""
    text = (project_root / "libra" / "clusters" / "a800x8.toml").read_text()
    (tmp_path / "large.toml").write_text(text.replace("num_nodes = 1", "num_nodes = 20"))
    cell = msgspec.structs.replace(make_cell(), cluster=str(tmp_path / "large.toml"))
    assert run_cell(cell, store, registry).state == "done"
    stored = msgspec.json.decode((folder(cell, store, registry) / "timing_model.json").read_bytes())
    assert stored["warnings"] == ["training on 80 GPUs: calibrated up to 64 (llm_foundry), x1.2 extrapolated"]
