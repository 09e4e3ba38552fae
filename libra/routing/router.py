"""What all bucket routers share: a router names the bucket it wants, this turns the wish into one `Place`.

A trajectory stays on its engine as long as the engine is up and already serves the wanted bucket; else it goes
to the least loaded engine of that bucket. So routers differ in nothing but the wish.
"""

from __future__ import annotations

from collections.abc import Sequence

from libra.core.commands import Command, Place, Why
from libra.core.events import Event, Placed, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.routing.fleet import ANY, Fleet


class BucketRouter:
    """Base of the routers. `Why.bucket` of the two hooks is the wish; `ANY` (-1) means no wish: stay if possible."""

    def __init__(self) -> None:
        self.fleet = Fleet()

    def first(self, event: TrajectoryStart) -> Why:
        """Wish for a new trajectory. Default: the least loaded engine of all."""
        return Why()

    def next(self, event: ToolReturned, current: int) -> Why:
        """Wish after a tool return; `current` is the bucket that the trajectory sits in. Default: stay."""
        return Why()

    def ended(self, event: TrajectoryEnd) -> None:
        """Learn from a finished trajectory; called for those that this router placed."""

    def on(self, event: Event) -> Sequence[Command]:
        """The commonest events come first: two of them arrive with every turn."""
        fleet = self.fleet
        if isinstance(event, Placed):
            fleet.saw(event.trajectory, event.instance)
        elif isinstance(event, ToolReturned):
            trajectory = event.trajectory
            if fleet.knows(trajectory):
                fleet.saw(trajectory, event.instance)
                why = self.next(event, fleet.bucket_at(trajectory, event.context_tok))
                return (self._place(trajectory, self._instance_for(trajectory, why.bucket), why),)
        elif isinstance(event, TrajectoryStart):
            why = self.first(event)
            return (self._place(event.trajectory, fleet.least_loaded(why.bucket), why),)
        elif isinstance(event, TrajectoryEnd):
            if fleet.knows(event.trajectory):
                self.ended(event)
                fleet.forget(event.trajectory)
        else:
            fleet.on(event)
        return ()

    def _instance_for(self, trajectory: int, bucket: int) -> int:
        """The present engine where the wish allows it, so that a fallback engine is not left for its equal."""
        present = self.fleet.instance_of(trajectory)
        if self.fleet.is_up(present) and (
            bucket == ANY or self.fleet.bucket_at(trajectory, 0) == self.fleet.serving(bucket)
        ):
            return present
        return self.fleet.least_loaded(bucket)

    def _place(self, trajectory: int, instance: int, why: Why) -> Place:
        self.fleet.assign(trajectory, instance)
        return Place(trajectory, instance, why=why)
