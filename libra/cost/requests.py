"""The demand of *one* training step, made of the telemetry window: a few length-sorted points with weights.

The window may hold one step's trajectories or eight; it is always scaled to one batch, so rollout and training are of
the same step. Sums over the batch stay exact under the compression, whatever is summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from libra.core.errors import ConfigError
from libra.core.policy import Finished

MAX_POINTS = 64
"""Length quantiles that the planner looks at (the authors' later code takes 64 too; paper, Algorithm 1)."""
BATCH_POINTS = 512
"""Points of one batch where a layout is priced on whole batches: every request by itself up to the usual sizes."""
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
    """Per-request columns, not sorted and not weighted. Observations are taken as spread evenly over the generation.

    Raises `ConfigError` when there is no request.
    """
    if not finished:
        raise ConfigError(
            "no trajectory to plan from",
            where="planner",
            mend="give the run a profile, or use a planner that needs no lengths (static uniform)",
        )
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
    return _points(columns_of(finished), batch, max_points, num_batches=1)


def both_of(finished: Sequence[Finished], batch: int) -> tuple[Requests, Batches]:
    """`compress` and `batches_of`, reading the window once."""
    columns = columns_of(finished)
    return _points(columns, batch, MAX_POINTS, num_batches=1), _batches(columns, batch)


@dataclass(frozen=True)
class Batches:
    """The window's batches side by side: `requests` holds `num` stretches of equally many points, each one a batch.

    What a step waits for, its longest request, differs from batch to batch, and so does the order of long generations
    and slow tools: the mean over batches is no function of the window's mean batch.
    """

    num: int
    requests: Requests

    def between(self, low_tok: float, high_tok: float) -> Batches:
        """The same points; those whose total is not in (low, high] weigh nothing."""
        total = self.requests.total_tok
        weight = np.where((total > low_tok) & (total <= high_tok), self.requests.weight, 0.0)
        return replace(self, requests=replace(self.requests, weight=weight))

    def sums(self, column: Array) -> Array:
        """Weighted sum over each batch, of shape [num]."""
        return np.asarray((self.requests.weight * column).reshape(self.num, -1).sum(axis=1))

    def largest(self, column: Array) -> Array:
        """Index of the largest value of each batch among the points that weigh something, of shape [num]."""
        seen = np.where(self.requests.weight > 0, column, -np.inf).reshape(self.num, -1)
        return np.asarray(seen.argmax(axis=1) + np.arange(self.num) * seen.shape[1])


def batches_of(finished: Sequence[Finished], batch: int) -> Batches:
    """Neighbours in the window, which is in order of time, make a batch: members of a group stay together.

    A window of less than two batches counts as one, scaled. The oldest rows that fill no batch are left out. Raises
    `ConfigError` when the window is empty.
    """
    return _batches(columns_of(finished), batch)


def _batches(columns: Mapping[str, Array], batch: int) -> Batches:
    rows = len(columns["total_tok"])
    num = max(1, rows // batch)
    kept = {name: column[rows - num * (rows // num) :] for name, column in columns.items()}
    return Batches(num, _points(kept, batch, BATCH_POINTS, num_batches=num))


def _points(columns: Mapping[str, Array], batch: int, max_points: int, num_batches: int) -> Requests:
    columns = {name: column.reshape(num_batches, -1) for name, column in columns.items()}
    order = np.argsort(columns["total_tok"], axis=1, kind="stable")
    edges = point_edges(batch, max_points)
    # Fractional sample positions and linear interpolation of running sums: any window size maps on any batch size.
    num = order.shape[1]
    at = edges * (num / batch)
    left = np.minimum(at.astype(int), num - 1)
    means = {}
    for name, column in columns.items():
        running = np.zeros((num_batches, num + 1))
        np.cumsum(np.take_along_axis(column, order, axis=1), axis=1, out=running[:, 1:])
        found = running[:, left] + (at - left) * (running[:, left + 1] - running[:, left])
        means[name] = (np.diff(found, axis=1) / np.diff(at)).ravel()
    last = np.clip(np.ceil(at[1:] - 1e-9).astype(int) - 1, 0, num - 1)
    upper_tok = np.take_along_axis(columns["total_tok"], order, axis=1)[:, last].ravel()
    return Requests(weight=np.tile(np.diff(edges), num_batches), upper_tok=upper_tok, **means)


def part(requests: Requests, low: int, high: int) -> Requests:
    """Points `low` to `high` (exclusive)."""
    return Requests(**{f.name: getattr(requests, f.name)[low:high] for f in fields(requests)})
