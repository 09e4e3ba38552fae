"""The newcomer's first minute: three workloads through five systems, short but over the whole drift; and recordings."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import SYSTEMS, WORKLOADS, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell
from libra.workloads.recordings import NAMES, PREFIX


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("demo", args, SYSTEMS, workloads=(*WORKLOADS, *(f"{PREFIX}{name}" for name in NAMES)))


STUDY = StudySpec(
    "demo",
    "three workloads and our recordings, five systems, one seed",
    cells,
    ("throughput", "traces"),
    num_seeds=1,
    num_steps=12,
)
