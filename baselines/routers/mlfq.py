"""Traditional multi-level feedback queue: start in the smallest bucket, promote one bucket when its bound is crossed.

The paper compares with "traditional MLFQ" (44.8 % accuracy, more than 100 % migrated tokens) and says no more. Our
reading: the length that counts is the context, and it is looked at when a tool returns, the only moment when a
trajectory can be placed. A single-turn trajectory therefore never leaves the smallest bucket.
"""

from __future__ import annotations

from libra.core.commands import Why
from libra.core.events import ToolReturned, TrajectoryStart
from libra.routing.router import BucketRouter


class Mlfq(BucketRouter):
    """Never moves down, never more than one bucket a return. Its `Why` holds no lengths: it predicts none."""

    def first(self, event: TrajectoryStart) -> Why:
        return Why(bucket=0)

    def next(self, event: ToolReturned, current: int) -> Why:
        bounds_tok = self.fleet.bounds_tok
        crossed = current + 1 < len(bounds_tok) and event.context_tok > bounds_tok[current]
        return Why(bucket=current + crossed)
