"""The quickest end-to-end check: two workloads, two systems, a few steps."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("smoke", args, ("verl-static-uniform", "libra"), workloads=("search-r1", "dapo-math"))


STUDY = StudySpec("smoke", "two systems on two workloads, a few steps", cells, num_seeds=1, num_steps=3)
