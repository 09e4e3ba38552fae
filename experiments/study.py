"""What studies are written with: a grid of cells over workloads, policies, variants and paired seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from libra.core.registry import StudyArgs
from libra.results.cell import Cell

CLUSTER = "a800x48"
MODEL = "qwen3-14b"
"""The paper used Qwen3-14B and Qwen3-30B-A3B without saying which where; 14B everywhere is our assumption."""

WORKLOADS = ("search-r1", "r2e-gym", "dapo-math")
SYSTEMS = ("verl-colocated", "verl-static-uniform", "verl-greedy-heuristic", "areal-static-optimal", "libra")
"""The paper's five systems, weakest first as it reports them."""

Overrides = Mapping[str, str | int | float | bool]


def grid(
    study: str,
    args: StudyArgs,
    policies: Sequence[str],
    *,
    workloads: Sequence[str] = WORKLOADS,
    variants: Sequence[Overrides] = ({},),
    cluster: str = CLUSTER,
    model: str = MODEL,
) -> Iterator[Cell]:
    """Cells of every combination, seeds outermost: an interrupted study has whole comparisons of its first seeds."""
    for seed in range(args.num_seeds):
        for workload in workloads:
            for variant in variants:
                overrides = {"workload.num_steps": args.num_steps, **variant}
                for policy in policies:
                    yield Cell.make(study, workload, cluster, model, policy, seed=seed, overrides=overrides)
