"""The paper's ablation on R2E-Gym (its Fig. 8): Static-Uniform, then planner, heterogeneous TP, C-MLFQ, elastic pool.

Two chains: ours with a planner that may also choose a homogeneous layout, and the authors' released TP pattern
(1,1,2,4 on each node), on which routing is compared without any planner.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

CHAIN = ("verl-static-uniform", "libra-homogeneous", "libra-hetero", "libra-cmlfq", "libra")
PATTERN = ("pattern-blind", "pattern-cmlfq")


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("ablation", args, (*CHAIN, *PATTERN), workloads=("r2e-gym",))


STUDY = StudySpec("ablation", "Libra part by part on R2E-Gym, the authors' pattern beside it", cells, ("ablation",))
