"""Why rollout is the problem: growth of rollout and training time with length, and tensor parallelism by length.

Growth runs batches of 16, 128 and 512 equal trajectories on 16 training and 32 rollout GPUs, because the paper does
not give its batch and the growth of both stages depends on it. The TP study gives 8 GPUs to rollout, batch 512, as the
paper does.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

LENGTHS_TOK = (1024, 2048, 4096, 8192, 16384, 32768)
BATCHES = (16, 128, 512)
TP_STUDY_BATCH = 512
TP_STUDY_TRAIN_GPUS = 40
"""Leaves 8 of 48 GPUs to rollout."""


def cells(args: StudyArgs) -> Iterator[Cell]:
    growth = [{"workload.batch": batch, "workload.length_tok": length} for batch in BATCHES for length in LENGTHS_TOK]
    yield from grid("motivation", args, ("static-tp1", "static-tp2"), workloads=("fixed-length",), variants=growth)
    tp_study = [
        {
            "workload.batch": TP_STUDY_BATCH,
            "workload.length_tok": length,
            "policy.num_train_gpus": TP_STUDY_TRAIN_GPUS,
        }
        for length in LENGTHS_TOK
    ]
    policies = tuple(f"static-tp{tp}" for tp in (1, 2, 4, 8))
    yield from grid("motivation", args, policies, workloads=("fixed-length",), variants=tp_study)


STUDY = StudySpec(
    "motivation",
    "growth of stage times with length, and throughput by tensor parallelism",
    cells,
    ("growth", "tp_study"),
    num_seeds=1,
    num_steps=3,
)
