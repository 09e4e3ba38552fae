"""Routers on the authors' heterogeneous layout: Search-R1 as in the paper's routing table, R2E-Gym beside it."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import grid
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

ROUTERS = ("blind", "turn-index", "mlfq", "prompt-history", "prompt-history-promote", "cmlfq", "oracle")


def cells(args: StudyArgs) -> Iterator[Cell]:
    policies = tuple(f"pattern-{router}" for router in ROUTERS)
    yield from grid("routing", args, policies, workloads=("search-r1", "r2e-gym"))


STUDY = StudySpec("routing", "seven routers on the same heterogeneous instances", cells, ("routing",), num_steps=40)
