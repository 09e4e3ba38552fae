"""Does a comparison hold in every world that the measurements allow? One constant set and network at a time.

Worlds: the constants as fitted; fitted without each group of measured rows; and single constants at other values. Each
on three networks and with the same three seeds, because a comparison may change more with the seed than with the world.
"""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import Overrides, grid
from libra.backends.sim.constants import folds
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

POLICIES = ("verl-static-uniform", "best-homogeneous", "libra", "pattern-blind", "pattern-cmlfq")
NETWORKS = ("nic15", "nic22", "nic176")
OTHER = (
    "train_fixed_s=4.5",
    "train_fixed_s=18",
    "backward_compute_share=0.258",
    "elementwise_overhead_s=6e-6",
    "mixed_reads_per_head=0.2",
)
"""Half and twice the fixed time of a step; the measured slow attention backward; twice the launch of an elementwise
kernel; KV read once beside chunks, as FlashAttention 3 is said to do."""


def worlds() -> list[Overrides]:
    """Overrides of each constant set, the shipped one first."""
    found: list[Overrides] = [{}]
    found += [{f"sim.{stage}_fold": group} for stage, groups in folds().items() for group in groups]
    return found + [{"sim.replace": text} for text in OTHER]


def cells(args: StudyArgs) -> Iterator[Cell]:
    variants = [{**world, "cluster.network": network} for world in worlds() for network in NETWORKS]
    yield from grid("worlds", args, POLICIES, variants=variants)


STUDY = StudySpec(
    "worlds",
    "the main comparisons under other constants and networks",
    cells,
    ("worlds",),
    num_steps=8,
)
