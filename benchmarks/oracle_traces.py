"""The fast engine against the stepwise one on every imported trace: makespan and counts. Run by hand:

python benchmarks/oracle_traces.py > benchmarks/results/oracle_traces_$(date +%F).txt
"""

from __future__ import annotations

import platform
import subprocess
import time
from pathlib import Path

from experiments.resolve import Resolver
from experiments.studies.traces import options_for
from libra.backends.sim.engine import Simulator
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.schemas import StepRow, TrajectoryRow
from libra.runtime.controller import Controller

NUM_STEPS = 2
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


def run(trace: Path, policy: str, engine: str) -> tuple[Rows, float]:
    overrides = {**options_for(trace), "workload.num_steps": NUM_STEPS, "sim.engine": engine}
    cell = Cell.make("traces", f"trace:{trace}", "a800x48", "qwen3-14b", policy, overrides=overrides)
    setup, rows, started = Resolver(Registry()).setup(cell), Rows(), time.perf_counter()
    simulator = Simulator(setup.cluster, setup.model, setup.build_workload(), setup.pipeline, options=setup.sim_options)
    simulator.run(Controller(setup.build_policy(), rows, time.perf_counter))
    return rows, time.perf_counter() - started


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    print(f"commit {commit.strip()}, {platform.machine()}, {NUM_STEPS} steps of 32 trajectories")
    for trace in sorted(Path("traces").glob("*.jsonl.gz")):
        for policy in ("libra", "pattern-cmlfq"):
            (fast, fast_s), (slow, slow_s) = (run(trace, policy, engine) for engine in ("fast", "stepwise"))
            error = slow.steps[-1].end_s / fast.steps[-1].end_s - 1
            pairs = zip(fast.trajectories, slow.trajectories, strict=True)
            different = sum(any(getattr(a, n) != getattr(b, n) for n in COUNTS) for a, b in pairs)
            print(f"{trace.name:34} {policy:14} makespan {fast.steps[-1].end_s:9.3f} s, stepwise {error:+.1e}; "
                  f"{different} of {len(fast.trajectories)} trajectories differ in a count; "
                  f"{fast_s:.2f} s against {slow_s:.2f} s")  # fmt: skip


if __name__ == "__main__":
    main()
