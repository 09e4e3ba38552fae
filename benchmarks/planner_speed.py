"""How long the planner takes, and how far its plans can be from the optimum: one core, Qwen3-14B, by cluster and batch.

    OMP_NUM_THREADS=1 python benchmarks/planner_speed.py >benchmarks/results/planner_speed_DATE.txt

Each time is the least of `ROUNDS` in a fresh planner, without hybrid replicas and with two;
the bound is computed apart.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import time

import msgspec
import numpy as np

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart
from libra.core.hardware import Cluster, Model
from libra.core.plan import Plan
from libra.core.policy import Finished, Statistics
from libra.models import load_model
from libra.planning.bound import step_bound_s
from libra.planning.search import JointPlanner

GPUS = (48, 128, 512, 4096, 16384)
BATCHES = (512, 4096)
ROUNDS = 5
LIMIT_TOK = 40960


def lengths(num: int) -> tuple[Finished, ...]:
    """Lognormal totals of mean 9,000 tokens, 60 % of them generated, a tool return every 350."""
    rng, found = np.random.default_rng(0), []
    for total in np.clip(rng.lognormal(np.log(9000) - 0.72, 1.2, num), 600, LIMIT_TOK).astype(int).tolist():
        generated = int((total - 500) * 0.6)
        turns = max(1, generated // 350)
        found.append(Finished(500, generated, total - 500 - generated, turns, 2.0 * (turns - 1)))
    return tuple(found)


def least_ms(cluster: Cluster, model: Model, statistics: Statistics, hybrid_replicas: int) -> tuple[float, Plan]:
    """Of `ROUNDS` fresh planners."""
    times_s = []
    for _ in range(ROUNDS):
        planner = JointPlanner(cluster, model, hybrid_replicas=hybrid_replicas)
        start = time.perf_counter()
        plan = planner.plan(statistics, None)
        times_s.append(time.perf_counter() - start)
    return 1e3 * min(times_s), plan


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    print(f"# commit {commit.stdout.strip()}, Python {platform.python_version()}, {platform.machine()}, one core")
    print(f"# load average of the machine at the start: {os.getloadavg()[0]:.1f}")
    print("requests    GPUs  plan ms  2 hybrids ms  step s  within   bound ms  peak MB")
    model = load_model("qwen3-14b")
    for batch in BATCHES:
        finished = lengths(batch)
        for num_gpus in GPUS:
            cluster = msgspec.structs.replace(load_cluster("a800x48"), num_nodes=num_gpus // 8)
            run = RunStart(0.0, cluster.name, model.name, PipelineSpec("barrier"), batch, 16, 500, LIMIT_TOK)
            statistics = Statistics(run, finished)
            plan_ms, plan = least_ms(cluster, model, statistics, 0)
            hybrid_ms, _ = least_ms(cluster, model, statistics, 2)
            estimator = JointPlanner(cluster, model).estimator
            demand, sizes = estimator.demand(statistics, None), estimator.rollout_sizes(LIMIT_TOK)
            start = time.perf_counter()
            bound_s = step_bound_s(estimator, demand, sizes, colocated=False)
            bound_ms = 1e3 * (time.perf_counter() - start)
            gap, peak_mb = plan.expected.step_s / bound_s - 1, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(f"{batch:8,} {num_gpus:7,} {plan_ms:8.1f} {hybrid_ms:13.1f} {plan.expected.step_s:7.1f} {gap:7.1%} "
                  f"{bound_ms:10.1f} {peak_mb:8}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
