"""Large batches and continuous rollout on R2E-Gym: where the split, KV limits and moving capacity matter at all.

The paper's own token rates imply small batches, whose step time is the latency of the last trajectory; there no split
matters. Here training and rollout are of the same size, and the drift turns one into the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import Overrides, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

POLICIES = (
    "verl-static-uniform",
    "areal-static-optimal",
    "best-homogeneous",
    "pattern-blind",
    "pattern-cmlfq",
    "libra-cmlfq",
    "libra",
)
PROMPTS = 32
"""Prompts a step: 512 trajectories."""

VARIANTS: tuple[Overrides, ...] = (
    {"workload.prompts": PROMPTS},
    {
        "workload.prompts": PROMPTS,
        "pipeline.kind": "async",
        "pipeline.staleness": 4,
        "pipeline.in_flight_cap": 512,
    },
)


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("throughput_bound", args, POLICIES, workloads=("r2e-gym",), variants=VARIANTS)


STUDY = StudySpec(
    "throughput_bound",
    "512 trajectories a step on R2E-Gym: the split and moving capacity matter",
    cells,
    ("throughput_bound",),
    num_seeds=2,
    num_steps=16,
)
