"""The rollout dynamic program: contiguous intervals of length-sorted requests over instances of mixed tensor-parallel
size (paper, Algorithm 1, inner loop).

    dp[g][i] = min over tp, j of max(dp[g - tp][j], cost(tp, points j..i-1)),   dp[g][i] <= dp[g - 1][i]

One table answers every budget up to its own, which is the paper's memoisation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from libra.cost.engine import Engine
from libra.cost.loads import interval_loads
from libra.cost.requests import Array, Requests
from libra.cost.rollout import Schedule, rollout_s


@dataclass(frozen=True)
class Interval:
    """Points `low` to `high` (exclusive) on one instance of `tp`."""

    tp: int
    low: int
    high: int


@dataclass(frozen=True)
class Table:
    """`best_s` of shape [G + 1, n + 1]; `tp` (0: one GPU idle) and `start` of the same shape lead back."""

    best_s: Array
    tp: Array
    start: Array

    def makespan_s(self, num_gpus: int) -> float:
        """Of all points on `num_gpus`; inf when they cannot be served."""
        return float(self.best_s[num_gpus, -1])

    def intervals(self, num_gpus: int) -> tuple[Interval, ...]:
        """The optimal intervals in ascending order of length; empty when there are none."""
        if not np.isfinite(self.makespan_s(num_gpus)):
            return ()
        found, g, i = [], num_gpus, self.best_s.shape[1] - 1
        while i > 0:
            tp, low = int(self.tp[g, i]), int(self.start[g, i])
            if tp == 0:
                g -= 1
                continue
            found.append(Interval(tp, low, i))
            g, i = g - tp, low
        return tuple(reversed(found))


def interval_costs(engines: Mapping[int, Engine], requests: Requests, schedule: Schedule) -> dict[int, Array]:
    """Per tensor-parallel size the cost of every interval [low, high): shape [n + 1, n + 1], inf below the diagonal."""
    n = len(requests)
    void = np.tril(np.ones((n + 1, n + 1), dtype=bool))
    costs = {}
    for tp, engine in engines.items():
        cost = rollout_s(engine, requests, interval_loads(engine, requests), schedule)
        costs[tp] = np.where(void, np.inf, cost)
    return costs


def solve(costs: Mapping[int, Array], num_gpus: int) -> Table:
    """Fill the table. Ties prefer fewer GPUs, then larger instances.

    O(G * sizes * n^2), vectorised over n, where G is `num_gpus` or the budget from which on more GPUs do not help:
    a row depends on as many rows before it as the largest size, so once these are all equal, all later ones are.
    """
    n = next(iter(costs.values())).shape[0] - 1
    best = np.full((num_gpus + 1, n + 1), np.inf)
    best[:, 0] = 0.0
    size = np.zeros((num_gpus + 1, n + 1), dtype=np.int16)
    start = np.zeros((num_gpus + 1, n + 1), dtype=np.int16)
    by_end = {tp: np.ascontiguousarray(costs[tp].T) for tp in sorted(costs, reverse=True)}
    unchanged = 0
    for g in range(1, num_gpus + 1):
        best[g] = best[g - 1]
        for tp, cost in by_end.items():
            if tp > g:
                continue
            value = np.maximum(best[g - tp], cost)
            least = value.min(axis=1)
            better = least < best[g]
            if better.any():
                best[g][better], size[g][better], start[g][better] = least[better], tp, value[better].argmin(axis=1)
        unchanged = 0 if (best[g] < best[g - 1]).any() else unchanged + 1
        if unchanged >= max(costs):
            best[g + 1 :] = best[g]
            break
    return Table(best, size, start)
