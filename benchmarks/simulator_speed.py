"""How fast the simulator is with the Libra policy on R2E-Gym: real-time factor, events a second, memory. Run by hand:

python benchmarks/simulator_speed.py 500 32 compiled > benchmarks/results/simulator_speed_$(date +%F).txt
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from experiments.resolve import Resolver
from libra.backends.sim.engine import Simulator
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.schemas import StepRow
from libra.runtime.controller import Controller

GROUP_SIZE = 16


class Steps:
    """Keeps the last step's end, and the peak memory when a fifth of the steps was over."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps, self.end_s, self.early_mib, self.num_decisions = num_steps, 0.0, 0.0, 0

    def decision(self, *_: object) -> None:
        self.num_decisions += 1

    def trajectory(self, *_: object) -> None: ...

    def step(self, row: StepRow) -> None:
        self.end_s = row.end_s
        if row.step == self.num_steps // 5:
            self.early_mib = peak_mib()


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(num_steps: int, batch: int, engine: str) -> None:
    overrides = {"workload.num_steps": num_steps, "workload.prompts": batch // GROUP_SIZE, "sim.engine": engine}
    cell = Cell.make("speed", "r2e-gym", "a800x48", "qwen3-14b", "libra", overrides=overrides)
    setup, steps = Resolver(Registry()).setup(cell), Steps(num_steps)
    simulator = Simulator(setup.cluster, setup.model, setup.build_workload(), setup.pipeline, options=setup.sim_options)
    started = time.perf_counter()
    simulator.run(Controller(setup.build_policy(), steps, time.perf_counter))
    wall_s = time.perf_counter() - started
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    print(
        f"commit {commit.strip()}, {os.cpu_count()} cores; R2E-Gym, libra, {num_steps} steps of {batch} trajectories, "
        f"engine {engine}"
    )
    print(f"simulated {steps.end_s:,.0f} s in {wall_s:.1f} s: {steps.end_s / wall_s:,.0f} times real time")
    print(f"{simulator.clock.num_events:,} simulator events, {simulator.clock.num_events / wall_s:,.0f} a second; "
          f"{steps.num_decisions:,} policy events")  # fmt: skip
    print(f"peak memory {steps.early_mib:.0f} MiB after a fifth of the steps, {peak_mib():.0f} MiB at the end")


if __name__ == "__main__":
    num_steps, batch, engine, *_ = [*sys.argv[1:], *("500", "32", "fast")[len(sys.argv) - 1 :]]
    main(int(num_steps), int(batch), engine)
