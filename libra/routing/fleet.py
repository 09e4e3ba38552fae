"""What every router knows of the rollout engines: which take requests, and who lives where.

Built from events alone. A placement counts when the router decides it, not when it is acknowledged, so that a burst of
starts spreads; the acknowledgement then says where the trajectory really went. A trajectory waiting for a tool counts
too: its KV cache still lies on the engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from libra.core.errors import LibraError
from libra.core.events import AllocationChanged, Event, Placed, PlannerTick, ToolReturned, TrajectoryEnd
from libra.core.plan import Allocation, InstanceStatus
from libra.routing.buckets import bucket_of

ANY = -1
"""No bucket in particular."""


class Fleet:
    """Instances that are up, by bucket, with their live trajectories."""

    def __init__(self) -> None:
        self.bounds_tok: tuple[int, ...] = ()
        self._by_bucket: dict[int, tuple[InstanceStatus, ...]] = {}
        self._up: dict[int, InstanceStatus] = {}
        self._where: dict[int, int] = {}
        self._home: dict[int, int] = {}
        self._live: Counter[int] = Counter()

    def on(self, event: Event) -> None:
        """Keep up with the run; trajectories that this fleet never placed are ignored."""
        if isinstance(event, Placed | ToolReturned):
            self.saw(event.trajectory, event.instance)
        elif isinstance(event, AllocationChanged | PlannerTick):
            self._see(event.allocation)
        elif isinstance(event, TrajectoryEnd):
            self.forget(event.trajectory)

    def saw(self, trajectory: int, instance: int) -> None:
        """A trajectory is really there."""
        if trajectory in self._where:
            self._settle(trajectory, instance)

    def forget(self, trajectory: int) -> None:
        """A trajectory is over."""
        instance = self._where.pop(trajectory, None)
        if instance is not None:
            self._live[instance] -= 1
            self._home.pop(trajectory, None)

    def knows(self, trajectory: int) -> bool:
        return trajectory in self._where

    def is_up(self, instance: int) -> bool:
        return instance in self._up

    def live(self, instance: int) -> int:
        return self._live[instance]

    def instance_of(self, trajectory: int) -> int:
        return self._where[trajectory]

    def assign(self, trajectory: int, instance: int) -> None:
        """Note a decision. The bucket of `instance` becomes the trajectory's."""
        self._settle(trajectory, instance)
        self._home[trajectory] = self._up[instance].bucket

    def bucket_at(self, trajectory: int, context_tok: int) -> int:
        """Bucket that the trajectory sits in: its engine's as it is *now*, since a repartition may have changed it.

        Where the engine is gone, the bucket it was last placed in, but none too small for what it holds already.
        """
        engine = self._up.get(self._where[trajectory])
        if engine is not None:
            return engine.bucket
        last = min(self._home.get(trajectory, 0), max(0, len(self.bounds_tok) - 1))
        return max(last, bucket_of(context_tok, self.bounds_tok))

    def serving(self, bucket: int) -> int:
        """`bucket` if one of its engines is up, else the next larger that has one, else the next smaller."""
        if bucket in self._by_bucket:
            return bucket
        buckets = list(self._by_bucket)
        if not buckets:
            raise LibraError("a placement was asked for while no instance is up; a backend must wait for one")
        at = bisect_left(buckets, bucket)
        return buckets[at] if at < len(buckets) else buckets[-1]

    def least_loaded(self, bucket: int = ANY) -> int:
        """Instance with the fewest live trajectories per GPU, ties by number.

        Per GPU because KV memory and bandwidth grow with the tensor-parallel degree, if not speed (assumed: no source
        says what the paper's "least connections" does across degrees).
        """
        served = self.serving(bucket)
        pool = self._up.values() if bucket == ANY else self._by_bucket[served]
        live = self._live
        return min(pool, key=lambda engine: (live[engine.id] / engine.tp, engine.id)).id

    def _see(self, allocation: Allocation) -> None:
        self.bounds_tok = allocation.bounds_tok
        up = allocation.up()
        self._up = {engine.id: engine for engine in up}
        self._by_bucket = {b: tuple(e for e in up if e.bucket == b) for b in sorted({e.bucket for e in up})}

    def _settle(self, trajectory: int, instance: int) -> None:
        before = self._where.get(trajectory)
        if before == instance:
            return
        if before is not None:
            self._live[before] -= 1
        self._where[trajectory] = instance
        self._live[instance] += 1
