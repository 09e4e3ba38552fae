"""What every figure script may read: the store's comparable cells with their metrics, and the paper's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from analysis.claims import Claim, load_claims
from analysis.load import Cells, comparable_cells
from analysis.names import HOMOGENEOUS, LIBRA, UNIFORM, WORKLOAD_TITLES
from libra.results.store import Store, StoredCell

SYSTEM_ORDER = (
    "verl-colocated",
    UNIFORM,
    "verl-greedy-heuristic",
    "areal-static-optimal",
    HOMOGENEOUS,
    LIBRA,
)
"""Weakest first, as the paper reports them."""


@dataclass(frozen=True)
class Sources:
    """A store opened for reading, with its comparable cells, their metrics and the claims, each read once."""

    store: Store

    @cached_property
    def comparable(self) -> Cells:
        return comparable_cells(self.store)

    @cached_property
    def table(self) -> pd.DataFrame:
        return self.comparable.table

    @cached_property
    def claims(self) -> Mapping[str, Claim]:
        return {claim.id: claim for claim in load_claims()}

    def paper(self, claim: str) -> float:
        """The paper's number, by the id of its claim."""
        value = self.claims[claim].value
        assert value is not None, f"claim {claim} has no single value"
        return value

    def cells(self, study: str) -> list[StoredCell]:
        """Cells of a study; none when the store has never seen it."""
        return self.comparable.of(study)

    def study(self, name: str) -> pd.DataFrame:
        """Metrics of one study."""
        return self.table[self.table["study"] == name]

    def first_of(self, studies: Sequence[str]) -> str:
        """The first study that has finished cells; the first of all where none has."""
        return next((name for name in studies if not self.missing(name)), studies[0])

    def missing(self, study: str) -> str:
        """Why a figure of this study cannot be drawn, or ""."""
        rows = self.study(study)
        if rows.empty:
            return f"No cell of study {study}: run `libra run {study}`."
        if (rows["status"] == "done").any():
            return ""
        return f"No finished cell of study {study}: see `libra status {study}`."


def titled(names: pd.Series) -> list[str]:
    """The paper's workloads that occur, in the paper's order."""
    there = set(names)
    return [name for name in WORKLOAD_TITLES if name in there]
