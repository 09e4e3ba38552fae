"""The newcomer's first minute: three workloads through five systems, short but over the whole drift."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import SYSTEMS, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("demo", args, SYSTEMS)


STUDY = StudySpec("demo", "three workloads, five systems, one seed", cells, ("throughput",), num_seeds=1, num_steps=12)
