"""The other consistent reading of the paper's numbers: asynchronous, staleness bounded, few trajectories in flight."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import Overrides, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

VARIANTS: tuple[Overrides, ...] = (
    {"pipeline.kind": "async", "pipeline.staleness": 1},
    {"pipeline.kind": "async", "pipeline.staleness": 4},
    {"pipeline.kind": "async", "pipeline.staleness": 4, "pipeline.in_flight_cap": 16},
)
POLICIES = ("verl-static-uniform", "areal-static-optimal", "best-homogeneous", "libra")


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("asynchrony", args, POLICIES, variants=VARIANTS)


STUDY = StudySpec(
    "asynchrony",
    "asynchronous pipelines: staleness 1, 4, and 4 with 16 in flight",
    cells,
    ("asynchrony",),
    num_steps=25,
)
