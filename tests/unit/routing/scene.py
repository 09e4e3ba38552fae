"""A router on a small stage: three buckets, a few engines, and short words for the events that it hears."""

from __future__ import annotations

from dataclasses import dataclass, field

from libra.core.commands import Place
from libra.core.events import AllocationChanged, Event, StepEnd, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation, InstanceState, InstanceStatus, TrainLayout
from libra.core.policy import Router
from libra.core.records import ToolStatus, TrajectoryStatus

BOUNDS_TOK = (4000, 12000, 40960)
LAYOUT = TrainLayout(tp=4, dp=4)


def engine(id: int, tp: int, bucket: int, state: InstanceState = "up") -> InstanceStatus:
    return InstanceStatus(id, tp, bucket, state)


ENGINES = (engine(0, 1, 0), engine(1, 1, 0), engine(2, 2, 1), engine(3, 4, 2))
"""Two small engines in bucket 0, one in bucket 1, one in bucket 2."""


@dataclass
class Scene:
    """Each word feeds one event; `start` and `tool` return the placement and check that there is exactly one."""

    router: Router
    engines: tuple[InstanceStatus, ...] = ENGINES
    bounds_tok: tuple[int, ...] = BOUNDS_TOK
    where: dict[int, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.allocate(self.engines, self.bounds_tok)

    def allocate(self, engines: tuple[InstanceStatus, ...], bounds_tok: tuple[int, ...] = BOUNDS_TOK) -> None:
        allocation = Allocation(LAYOUT, LAYOUT.dp, engines, bounds_tok)
        assert not self.router.on(AllocationChanged(0.0, allocation, "up"))

    def start(self, trajectory: int, prompt_id: str = "p", prompt_tok: int = 500, oracle: int | None = None) -> Place:
        self.turns[trajectory] = 0
        return self._placed(TrajectoryStart(0.0, trajectory, prompt_id, 0, 0, prompt_tok, 0, oracle))

    def tool(
        self,
        trajectory: int,
        context_tok: int,
        tool: str = "bash",
        payload_tok: int = 100,
        status: ToolStatus = "ok",
    ) -> Place:
        self.turns[trajectory] += 1
        at, turn = self.where[trajectory], self.turns[trajectory]
        return self._placed(ToolReturned(0.0, trajectory, at, turn, tool, payload_tok, status, 1.0, context_tok))

    def end(self, trajectory: int, total_tok: int, status: TrajectoryStatus = "completed") -> None:
        event = TrajectoryEnd(0.0, trajectory, self.where[trajectory], status, total_tok - 500, total_tok, 1, 0.0)
        assert not self.router.on(event)

    def history(self, totals_tok: list[int], *, context_tok: int = 1000, first: int = 1000, **tool: object) -> None:
        """One finished trajectory of prompt `p` a total, each with one tool return at `context_tok`."""
        for number, total_tok in enumerate(totals_tok):
            self.start(first + number)
            self.tool(first + number, context_tok, **tool)  # type: ignore[arg-type]
            self.end(first + number, total_tok)

    def sync(self, step: int = 0) -> None:
        assert not self.router.on(StepEnd(0.0, step, 100.0, 50.0, 2.0, 102.0, 300_000, LAYOUT, LAYOUT.dp))

    def _placed(self, event: Event) -> Place:
        commands = self.router.on(event)
        assert len(commands) == 1 and isinstance(commands[0], Place)
        place = commands[0]
        assert place.trajectory == event.trajectory  # type: ignore[union-attr]
        self.where[place.trajectory] = place.instance
        return place
