"""Under which settings do rollout and training grow as the paper says from 1K to 32K tokens (its Fig. 2a)?

The paper gives neither batch nor tensor parallelism, and our training step has a fixed time that is assumed. All three
are swept over equal trajectories on 16 training and 32 rollout GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import Overrides, grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

LENGTHS_TOK = (1024, 32768)
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
TENSOR_PARALLEL = (1, 2, 4, 8)
FIXED_S = (0.001, 4.5, 12.0, 18.0)
"""Beside the shipped 9 s: none to speak of, half, a third more and twice."""


def cells(args: StudyArgs) -> Iterator[Cell]:
    sizes: list[Overrides] = [
        {"workload.batch": batch, "workload.length_tok": length} for batch in BATCHES for length in LENGTHS_TOK
    ]
    policies = tuple(f"static-tp{tp}" for tp in TENSOR_PARALLEL)
    yield from grid("growth", args, policies, workloads=("fixed-length",), variants=sizes)
    fixed = [{**size, "sim.replace": f"train_fixed_s={seconds:g}"} for size in sizes for seconds in FIXED_S]
    yield from grid("growth", args, ("static-tp1",), workloads=("fixed-length",), variants=fixed)


STUDY = StudySpec(
    "growth",
    "settings under which stage times grow with length as published",
    cells,
    ("growth_settings",),
    num_seeds=1,
    num_steps=3,
)
