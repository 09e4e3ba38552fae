"""Large batches on R2E-Gym: where the split between training and rollout and moving capacity matter at all.

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


def cells(args: StudyArgs) -> Iterator[Cell]:
    large: Overrides = {"workload.prompts": PROMPTS}
    yield from grid("throughput_bound", args, POLICIES, workloads=("r2e-gym",), variants=(large,))


STUDY = StudySpec(
    "throughput_bound",
    "512 trajectories a step on R2E-Gym: the split and moving capacity matter",
    cells,
    ("throughput_bound",),
    num_seeds=3,
    num_steps=12,
)
