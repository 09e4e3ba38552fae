"""A window of lengths with mean and P90 of one and the same sample; truncated ones count as lower bounds.

The two statistics are those of the Kaplan-Meier distribution of the window: a length that was cut short hands its mass
to the longer ones instead of pulling the mean down. The largest length of a window counts as it is (Efron's
convention), because nothing in the window says how much longer it would have been.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, NewType

WINDOW = 64
"""Lengths kept per node: four visits of a prompt's 16 samples (assumed). Small enough that drift is seen, since old
ones leave the mean and the P90 together."""

MIN_EVIDENCE = 4
"""Fewest lengths that make an estimate: a quarter of a prompt's 16 samples (assumed). With one, mean and P90 are equal
by construction and the agreement rule would say nothing."""

QUANTILE = 0.9
"""The paper's P90."""
P90_SURVIVING = 1 - QUANTILE + 1e-9
"""What survives the P90, with room for the rounding of up to `WINDOW` subtractions."""

Length = NewType("Length", int)
"""One observation in one integer, since a tree holds hundreds of thousands: the tokens shifted by two bits, then
`CENSORED`, then `EVIDENCE`. Sorts by tokens, exact before censored at equal ones."""
TOK_SHIFT = 2
CENSORED = 2
EVIDENCE = 1


def length(tok: int, is_censored: bool = False, is_evidence: bool = True) -> Length:
    """An observed length. `is_evidence` is false for aborted trajectories."""
    return Length(tok << TOK_SHIFT | is_censored * CENSORED | is_evidence * EVIDENCE)


class Summary(NamedTuple):
    """Mean and P90 in tokens of `evidence` lengths."""

    mean_tok: float
    p90_tok: float
    evidence: int


class Sample:
    """The last `WINDOW` lengths of a node. Kept in order from the first question on, so that asking again is cheap."""

    __slots__ = ("_at", "_lengths", "_ordered", "_summary", "evidence")

    def __init__(self, *lengths: Length) -> None:
        self.evidence = 0
        """Lengths of the window that are evidence."""
        self._lengths: list[Length] = []
        self._at = 0
        self._ordered: list[Length] | None = None
        self._summary: Summary | None = None
        for each in lengths:
            self.add(each)

    def add(self, new: Length, window: int = WINDOW) -> None:
        """Keep `new`; the oldest of a full window goes."""
        lengths, ordered = self._lengths, self._ordered
        if len(lengths) < window:
            lengths.append(new)
        else:
            old, lengths[self._at] = lengths[self._at], new
            self._at = (self._at + 1) % window
            self.evidence -= old & EVIDENCE
            if ordered is not None:
                del ordered[bisect_left(ordered, old)]
        self.evidence += new & EVIDENCE
        if ordered is not None:
            insort(ordered, new)
        self._summary = None

    def summary(self) -> Summary:
        """Zeros for an empty sample."""
        if self._summary is None:
            if self._ordered is None:
                self._ordered = sorted(self._lengths)
            self._summary = Summary(*_mean_and_p90(self._ordered), self.evidence)
        return self._summary


def summarize(lengths: Iterable[Length]) -> Summary:
    """Kaplan-Meier mean and P90. Without censoring: the plain mean and the nearest-rank quantile."""
    ordered = sorted(lengths)
    return Summary(*_mean_and_p90(ordered), sum(each & EVIDENCE for each in ordered))


class _Masses(NamedTuple):
    """Kaplan-Meier distribution of `num` exact lengths: the mass of each rank, and what survives before it."""

    mass: tuple[float, ...]
    surviving: tuple[float, ...]
    p90_rank: int


@lru_cache(maxsize=2 * WINDOW)
def _exact(num: int) -> _Masses:
    """The same additions as `_mean_and_p90` makes for any lengths, so that a prefix of them can be taken from here."""
    masses, before, surviving, p90_rank = [], [], 1.0, -1
    for rank in range(num):
        before.append(surviving)
        masses.append(surviving / (num - rank))
        surviving -= masses[-1]
        if p90_rank < 0 and surviving <= P90_SURVIVING:
            p90_rank = rank
    return _Masses(tuple(masses), tuple(before), p90_rank)


def _mean_and_p90(ordered: Sequence[Length]) -> tuple[float, float]:
    """Up to the first censored length all masses are known; from there on the estimator's recursion runs."""
    masses, before, p90_rank = _exact(len(ordered))
    mean_tok = 0.0
    for each, mass in zip(ordered, masses, strict=True):
        if each & CENSORED:
            break
        mean_tok += mass * (each >> TOK_SHIFT)
    else:
        return mean_tok, float(ordered[p90_rank] >> TOK_SHIFT) if ordered else 0.0
    rank = ordered.index(each)
    p90_tok = float(ordered[p90_rank] >> TOK_SHIFT) if p90_rank < rank else None
    surviving, at_risk = before[rank], len(ordered) - rank
    for each in ordered[rank:]:
        if not each & CENSORED or at_risk == 1:
            mass = surviving / at_risk
            mean_tok += mass * (each >> TOK_SHIFT)
            surviving -= mass
            if p90_tok is None and surviving <= P90_SURVIVING:
                p90_tok = float(each >> TOK_SHIFT)
        at_risk -= 1
    return mean_tok, p90_tok or 0.0
