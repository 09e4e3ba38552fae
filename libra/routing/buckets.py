"""Which bucket a total length belongs to, given the bounds that the planner emits with a layout (paper, C-MLFQ)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def bucket_of(total_tok: float, bounds_tok: Sequence[int]) -> int:
    """Smallest bucket whose bound (the largest length that it serves) is at least `total_tok`.

    Longer than every bound: the last bucket, which must take it. No bounds: 0.
    """
    bucket = bisect_left(bounds_tok, total_tok)
    return bucket if bucket < len(bounds_tok) else max(0, bucket - 1)
