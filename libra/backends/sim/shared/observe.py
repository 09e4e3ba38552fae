"""What a run shows from outside, live or simulated alike: times of steps, turns and starts out of rows and events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from libra.core.events import Event, Placed, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.results.schemas import StepRow

NUM_BINS = 4
"""Of turns by how many others were under way: enough to tell a step's fixed part from its part per sequence."""


@dataclass(frozen=True)
class TurnTime:
    """From a placement to what follows the turn, the tool left out. `num_others` turns were under way at its start."""

    seconds: float
    num_others: int


def turn_times(events: Iterable[Event], after_s: float = 0.0) -> list[TurnTime]:
    """Turns that were placed after `after_s` and ended, in the order of their ends."""
    placed: dict[int, tuple[float, int]] = {}
    found = []
    for event in events:
        if isinstance(event, Placed):
            placed[event.trajectory] = (event.t_s, len(placed))
        elif isinstance(event, ToolReturned | TrajectoryEnd) and event.trajectory in placed:
            began_s, num_others = placed.pop(event.trajectory)
            tool_s = event.latency_s if isinstance(event, ToolReturned) else 0.0
            if began_s >= after_s:
                found.append(TurnTime(max(0.0, event.t_s - tool_s - began_s), num_others))
    return found


def window(steps: Sequence[StepRow]) -> tuple[float, int]:
    """Makespan and trained tokens from the first step's end to the last one's.

    The first step is left out on both sides: it holds the start-up of every process, and verl begins with two batches.
    """
    return steps[-1].end_s - steps[0].end_s, sum(_tokens(row) for row in steps[1:])


def _tokens(row: StepRow) -> int:
    return row.prompt_tok + row.generated_tok + row.observed_tok


def starts(events: Iterable[Event], groups_per_step: int) -> list[tuple[float, float]]:
    """First and last start of each batch."""
    found: dict[int, list[float]] = {}
    for event in events:
        if isinstance(event, TrajectoryStart):
            found.setdefault(event.group // groups_per_step, []).append(event.t_s)
    return [(min(times), max(times)) for _, times in sorted(found.items())]


def observe(steps: Sequence[StepRow], events: Sequence[Event], groups_per_step: int) -> dict[str, np.ndarray]:
    """Named times that the fit compares, from the first step's end on: the first two batches start together live.

    `gap` is from a step's end to the next batch's first start, `start` from a batch's first start to its last.
    """
    began_s = steps[0].end_s
    turns = sorted(turn_times(events, began_s), key=lambda turn: turn.num_others)
    bins = [part for part in np.array_split(np.array([turn.seconds for turn in turns]), NUM_BINS) if len(part)]
    batches = starts(events, groups_per_step)[2:]
    ends_s = np.array([row.end_s for row in steps])
    gaps = [first_s - ends_s[ends_s <= first_s].max() for first_s, _ in batches if first_s >= began_s]
    return {
        "makespan": np.array([steps[-1].end_s - began_s]),
        "step": np.diff(ends_s),
        "train": np.array([row.train_s for row in steps[1:]]),
        "rollout": np.array([row.rollout_s for row in steps[2:]]),
        "turn": np.array([part.mean() for part in bins]),
        "start": np.array([np.mean([last_s - first_s for first_s, last_s in batches] or [0.0])]),
        "gap": np.array([np.mean(gaps or [0.0])]),
    }
