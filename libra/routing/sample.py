"""A window of lengths with mean and P90 of one and the same sample; truncated ones count as lower bounds.

The two statistics are those of the Kaplan-Meier distribution of the window: a length that was cut short hands its mass
to the longer ones instead of pulling the mean down. The largest length of a window counts as it is (Efron's
convention), because nothing in the window says how much longer it would have been.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

WINDOW = 64
"""Lengths kept per node: four visits of a prompt's 16 samples (assumed). Small enough that drift is seen, since old
ones leave the mean and the P90 together."""

MIN_EVIDENCE = 4
"""Fewest lengths that make an estimate: a quarter of a prompt's 16 samples (assumed). With one, mean and P90 are equal
by construction and the agreement rule would say nothing."""

QUANTILE = 0.9
"""The paper's P90."""


class Length(NamedTuple):
    """One observation; sorts exact before censored at equal length. `is_evidence` is false for aborted ones."""

    tok: int
    is_censored: bool = False
    is_evidence: bool = True


class Summary(NamedTuple):
    """Mean and P90 in tokens of `evidence` lengths."""

    mean_tok: float
    p90_tok: float
    evidence: int


class Sample:
    """The last `WINDOW` lengths of a node."""

    __slots__ = ("_at", "_lengths", "_summary")

    def __init__(self) -> None:
        self._lengths: list[Length] = []
        self._at = 0
        self._summary: Summary | None = None

    def add(self, length: Length, window: int = WINDOW) -> None:
        """Keep `length`; the oldest of a full window goes."""
        if len(self._lengths) < window:
            self._lengths.append(length)
        else:
            self._lengths[self._at] = length
            self._at = (self._at + 1) % window
        self._summary = None

    def summary(self) -> Summary:
        """Zeros for an empty sample."""
        if self._summary is None:
            self._summary = summarize(self._lengths)
        return self._summary


def summarize(lengths: Iterable[Length]) -> Summary:
    """Kaplan-Meier mean and P90. Without censoring: the plain mean and the nearest-rank quantile."""
    ordered = sorted(lengths)
    surviving, mean_tok = 1.0, 0.0
    p90_tok: float | None = None
    for rank, length in enumerate(ordered):
        at_risk = len(ordered) - rank
        if length.is_censored and at_risk > 1:
            continue
        mass = surviving / at_risk
        mean_tok += mass * length.tok
        surviving -= mass
        if p90_tok is None and surviving <= 1 - QUANTILE + 1e-9:
            p90_tok = float(length.tok)
    return Summary(mean_tok, p90_tok or 0.0, sum(length.is_evidence for length in ordered))
