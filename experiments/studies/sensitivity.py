"""How the main comparison moves with what the paper leaves open: tool time, network, failures that lengthen."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

POLICIES = ("verl-static-uniform", "pattern-cmlfq", "best-homogeneous", "libra")
VARIANTS = (
    {"workload.tool_s": 1.5},
    {"workload.tool_s": 3.0},
    {"workload.tool_s": 5.0},
    {"cluster.network": "nic15"},
    {"cluster.network": "nic176"},
    {"workload.tool_signal": 0.5},
)


def cells(args: StudyArgs) -> Iterator[Cell]:
    yield from grid("sensitivity", args, POLICIES, workloads=("r2e-gym",), variants=VARIANTS)


STUDY = StudySpec("sensitivity", "tool time, network and tool signal on R2E-Gym", cells, ("sensitivity",), num_steps=25)
