"""In how many worlds (constants of the simulator, networks) does one system beat another?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.names import HOMOGENEOUS, RATE, UNIFORM, WORKLOAD_TITLES
from analysis.pairs import by_seed, select

COMPARISONS = (
    ("libra", UNIFORM),
    ("libra", HOMOGENEOUS),
    (HOMOGENEOUS, UNIFORM),
    ("pattern-cmlfq", "pattern-blind"),
)
EVEN = 0.01
"""Ratios within 1 % of each other count as equal, neither a win nor a loss."""


@dataclass(frozen=True)
class Compared:
    """Ratios of one comparison on one workload, by world (variant) and seed."""

    workload: str
    ours: str
    theirs: str
    ratios: dict[tuple[str, int], float]

    @property
    def num_worlds(self) -> int:
        return len({world for world, _ in self.ratios})

    @property
    def num_seeds(self) -> int:
        return len({seed for _, seed in self.ratios})

    @property
    def wins(self) -> int:
        return sum(ratio > 1 + EVEN for ratio in self.ratios.values())

    @property
    def losses(self) -> int:
        return sum(ratio < 1 - EVEN for ratio in self.ratios.values())

    @property
    def count(self) -> str:
        """`135 (45 worlds x 3 seeds)`."""
        return f"{len(self.ratios)} ({self.num_worlds} worlds x {self.num_seeds} seeds)"


def compare(study: pd.DataFrame, comparisons: Sequence[tuple[str, str]] = COMPARISONS) -> list[Compared]:
    """Comparisons on each of the paper's workloads, from the cells of study `worlds`; ratios are paired by seed."""
    table, found = select(study, metric=RATE), []
    for workload in (name for name in WORKLOAD_TITLES if name in set(table["workload"])):
        for ours, theirs in comparisons:
            ratios: dict[tuple[str, int], float] = {}
            for variant in sorted(set(table["variant"])):
                where = {"workload": workload, "variant": variant}
                above, below = (by_seed(table, **where, policy=policy) for policy in (ours, theirs))
                ratios |= {(variant, seed): above[seed] / below[seed] for seed in sorted(above.keys() & below.keys())}
            if ratios:
                found.append(Compared(workload, ours, theirs, ratios))
    return found


def sentence(study: pd.DataFrame, ours: str, theirs: str) -> str:
    """How many worlds a comparison holds in, by workload; empty without finished cells."""
    found = compare(study, ((ours, theirs),))
    parts = [f"{each.wins} won and {each.losses} lost on {WORKLOAD_TITLES[each.workload]}" for each in found]
    counts = ", ".join(dict.fromkeys(each.count for each in found))
    return f"`{ours}` against `{theirs}` {', '.join(parts)}, each of {counts}" if parts else ""
