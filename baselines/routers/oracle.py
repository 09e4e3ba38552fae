"""Oracle routing: the bucket of the true total length, from the start on (paper's upper bound for routing quality).

Needs `oracle_total_tok` of the start event, which only policies marked `uses_oracle` receive. Moves only when a
repartition changes the bounds or takes the engine away.
"""

from __future__ import annotations

from libra.core.commands import Why
from libra.core.errors import ConfigError
from libra.core.events import ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.routing.buckets import bucket_of
from libra.routing.router import BucketRouter


class Oracle(BucketRouter):
    """Raises `ConfigError` where the true length is withheld."""

    def __init__(self) -> None:
        super().__init__()
        self._total_tok: dict[int, int] = {}

    def first(self, event: TrajectoryStart) -> Why:
        if event.oracle_total_tok is None:
            raise ConfigError(
                "true lengths are withheld", where="oracle router", mend="mark the policy with uses_oracle=True"
            )
        self._total_tok[event.trajectory] = event.oracle_total_tok
        return self._why(event.oracle_total_tok)

    def next(self, event: ToolReturned, current: int) -> Why:
        return self._why(self._total_tok[event.trajectory])

    def ended(self, event: TrajectoryEnd) -> None:
        del self._total_tok[event.trajectory]

    def _why(self, total_tok: int) -> Why:
        return Why("oracle", total_tok, total_tok, 1, bucket_of(total_tok, self.fleet.bounds_tok))
