"""The paper's main comparison (its Fig. 7): throughput of five systems and the best homogeneous plan, three workloads.

Every disaggregated system runs the one-step-off barrier pipeline, whose step time is the paper's own objective
max(T_rollout, T_train), so that resource management is compared and not asynchrony (study `asynchrony` has that). Six
seeds: with three, Search-R1's interval of Libra over the best homogeneous plan missed what six give.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import SYSTEMS, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("end_to_end", args, (*SYSTEMS, "best-homogeneous"))


STUDY = StudySpec(
    "end_to_end",
    "five systems and the best homogeneous plan on the three workloads, one-step-off pipeline",
    cells,
    ("throughput", "drift", "reward"),
    num_seeds=6,
)
