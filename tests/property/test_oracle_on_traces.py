"""Three cores on every public trace: the fast engine against its stepwise oracle, and the compiled one bit by bit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from experiments.resolve import Resolver
from experiments.studies.traces import options_for
from libra.backends.sim.engine import Simulator
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.schemas import StepRow, TrajectoryRow
from libra.runtime.controller import Controller
from libra.workloads.importers import import_dump
from libra.workloads.trace_file import write_trace

SOURCES = {
    "tau-bench/gpt-4o-airline.json": "openai",
    "swe-agent/raw": "swe-agent",
    "mini-swe-agent/raw": "mini-swe-agent",
    "kv-cache-tester/raw": "kv-cache-tester",
    "kv-cache-tester/episodes.jsonl.gz": "normalized",
}
COUNTS = ("prefilled_tok", "cached_tok", "num_preemptions", "num_moves", "moved_tok", "trained_step")


class Rows:
    """Keeps steps and trajectories in memory."""

    def __init__(self) -> None:
        self.steps: list[StepRow] = []
        self.trajectories: list[TrajectoryRow] = []

    def decision(self, *_: object) -> None: ...

    def trajectory(self, row: TrajectoryRow) -> None:
        self.trajectories.append(row)

    def step(self, row: StepRow) -> None:
        self.steps.append(row)


def run(trace: Path, policy: str, engine: str) -> Rows:
    overrides: dict[str, Any] = {**options_for(trace), "workload.num_steps": 2, "sim.engine": engine}
    cell = Cell.make("traces", f"trace:{trace}", "a800x48", "qwen3-14b", policy, overrides=overrides)
    setup, rows = Resolver(Registry()).setup(cell), Rows()
    simulator = Simulator(setup.cluster, setup.model, setup.build_workload(), setup.pipeline, options=setup.sim_options)
    simulator.run(Controller(setup.build_policy(), rows, time.perf_counter))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("policy", ["libra", "pattern-cmlfq"])
def test_the_cores_agree(shared_root: Path, tmp_path: Path, source: str, policy: str) -> None:
    dump = shared_root / "traces" / source
    if not dump.exists():
        pytest.skip("needs the public traces in ../shared/traces, which are not part of the product")
    trace = tmp_path / "trace.jsonl.gz"
    found = import_dump(SOURCES[source], [dump])
    write_trace(trace, found.header, found.trajectories)
    fast, slow = run(trace, policy, "fast"), run(trace, policy, "stepwise")
    assert slow.steps[-1].end_s == pytest.approx(fast.steps[-1].end_s, rel=5e-3)
    for name in COUNTS:
        assert [getattr(r, name) for r in fast.trajectories] == [getattr(r, name) for r in slow.trajectories], name
    pytest.importorskip("numba", reason="the compiled core needs numba")
    compiled = run(trace, policy, "compiled")
    assert (compiled.steps, compiled.trajectories) == (fast.steps, fast.trajectories)
