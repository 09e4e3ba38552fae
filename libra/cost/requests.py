"""The demand of *one* training step, made of the telemetry window: a few length-sorted points with weights.

The window may hold one step's trajectories or eight; it is always scaled to one batch, so rollout and training are of
the same step. Sums over the batch stay exact under the compression, whatever is summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from libra.core.errors import ConfigError
from libra.core.policy import Finished

MAX_POINTS = 64
"""Length quantiles that the planner looks at (the authors' later code takes 64 too; paper, Algorithm 1)."""
Array = np.ndarray


@dataclass(frozen=True)
class Requests:
    """Points sorted by total length, each standing for `weight` equal requests; all arrays are of shape [n].

    `traffic_tok` is the sum over decode steps of the context read (additive over requests), `prefill_tok` what is
    prefilled when the prefix stays cached, `prefill_pairs` the query-key pairs of that, `context_tok` the context
    held on average over the decode steps, `returned_tok` the sum of contexts at tool returns. `upper_tok` is the
    longest total of the point, `square_tok` the mean squared total.
    """

    weight: Array
    total_tok: Array
    square_tok: Array
    generated_tok: Array
    traffic_tok: Array
    prefill_tok: Array
    prefill_pairs: Array
    context_tok: Array
    returned_tok: Array
    num_turns: Array
    tool_s: Array
    upper_tok: Array

    def __len__(self) -> int:
        return len(self.weight)

    @property
    def batch(self) -> float:
        """Requests of the step."""
        return float(self.weight.sum())

    def sum(self, name: str) -> float:
        """Weighted sum of a column over the step."""
        return float((self.weight * getattr(self, name)).sum())


def columns_of(finished: Sequence[Finished]) -> dict[str, Array]:
    """Per-request columns, not sorted and not weighted. Observations are taken as spread evenly over the generation."""
    rows = [(f.prompt_tok, f.generated_tok, f.observed_tok, max(1, f.num_turns), f.tool_s) for f in finished]
    prompt, generated, observed, turns, tool_s = np.array(rows, dtype=float).T
    total = prompt + generated + observed
    mean_context = prompt + (generated + observed) / 2
    return {
        "total_tok": total,
        "square_tok": total**2,
        "generated_tok": generated,
        "traffic_tok": generated * mean_context,
        "prefill_tok": prompt + observed,
        "prefill_pairs": prompt**2 / 2 + observed * mean_context,
        "context_tok": mean_context,
        "returned_tok": (turns - 1) * mean_context,
        "num_turns": turns,
        "tool_s": tool_s,
    }


def point_edges(batch: int, max_points: int = MAX_POINTS) -> Array:
    """Edges of the points in requests, from 0 to `batch`: single requests in the tail, even groups below it.

    The makespan hangs on the longest few, so half of the points are kept for them.
    """
    if batch <= max_points:
        return np.arange(batch + 1, dtype=float)
    tail = max_points // 2
    head = np.linspace(0, batch - tail, max_points - tail + 1)
    return np.concatenate([head, np.arange(batch - tail + 1, batch + 1)])


def compress(finished: Sequence[Finished], batch: int, max_points: int = MAX_POINTS) -> Requests:
    """Scale a window to one batch. Raises `ConfigError` when the window is empty."""
    if not finished:
        raise ConfigError(
            "no trajectory to plan from",
            where="planner",
            mend="give the run a profile, or use a planner that needs no lengths (static uniform)",
        )
    columns = columns_of(finished)
    order = np.argsort(columns["total_tok"], kind="stable")
    edges = point_edges(batch, max_points)
    # Fractional sample positions and linear interpolation of running sums: any window size maps on any batch size.
    at = edges * (len(order) / batch)
    grid = np.arange(len(order) + 1)
    means = {}
    for name, column in columns.items():
        running = np.concatenate([[0.0], np.cumsum(column[order])])
        means[name] = np.diff(np.interp(at, grid, running)) / np.diff(at)
    last = np.clip(np.ceil(at[1:] - 1e-9).astype(int) - 1, 0, len(order) - 1)
    return Requests(weight=np.diff(edges), upper_tok=columns["total_tok"][order][last], **means)


def part(requests: Requests, low: int, high: int) -> Requests:
    """Points `low` to `high` (exclusive)."""
    return Requests(**{f.name: getattr(requests, f.name)[low:high] for f in fields(requests)})
