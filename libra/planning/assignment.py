"""The integer program of placement: how many units of each kind on each node, so that the most GPUs keep their tenant.

Exact (HiGHS branch and cut, no gap allowed). Ties go to lower nodes for training, higher ones for the rest, by a weight
too small to outweigh one GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Kind:
    """`count` units of `size` GPUs; `kept` GPUs of one keep their tenant on these nodes. `trains`: kept are those of
    the node's training GPUs that it takes."""

    size: int
    count: int
    kept: dict[int, int]
    trains: bool


def fewest_changes(kinds: Sequence[Kind], nodes: Sequence[int], training: Sequence[int]) -> list[list[int]] | None:
    """Units of each kind per node; None when they do not fit. `training` are GPUs that train now, per node."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    num_kinds, num_nodes = len(kinds), len(nodes)
    sizes = np.array([kind.size for kind in kinds])
    # x[kind, node], then the GPUs of each node that go on training.
    num = num_kinds * num_nodes
    at = np.arange(num).reshape(num_kinds, num_nodes)
    stays = num + np.arange(num_nodes)
    gain = np.zeros(num + num_nodes)
    gain[stays] = 1.0
    # All ties together are worth less than half a GPU.
    tie = 0.5 / (1 + num_nodes * sum(nodes)) * sizes[:, None] * np.arange(num_nodes)[None, :]
    for row, kind in enumerate(kinds):
        gain[at[row]] = -tie[row] if kind.trains else tie[row]
        for node, gpus in kind.kept.items():
            gain[at[row, node]] += gpus
    room = coo_array((np.repeat(sizes, num_nodes), (np.tile(np.arange(num_nodes), num_kinds), at.ravel())),
                     shape=(num_nodes, num + num_nodes))  # fmt: skip
    every = coo_array((np.ones(num), (np.repeat(np.arange(num_kinds), num_nodes), at.ravel())),
                      shape=(num_kinds, num + num_nodes))  # fmt: skip
    trained = np.repeat([kind.size if kind.trains else 0 for kind in kinds], num_nodes)
    columns = np.concatenate([stays, at.ravel()])
    rows = np.concatenate([np.arange(num_nodes), np.tile(np.arange(num_nodes), num_kinds)])
    limited = coo_array((np.concatenate([np.ones(num_nodes), -trained]), (rows, columns)),
                        shape=(num_nodes, num + num_nodes))  # fmt: skip
    counts = np.array([kind.count for kind in kinds])
    result = milp(
        -gain,
        constraints=[
            LinearConstraint(room, ub=np.array(nodes)),
            LinearConstraint(every, lb=counts, ub=counts),
            LinearConstraint(limited, ub=np.zeros(num_nodes)),
        ],
        integrality=np.ones(num + num_nodes),
        bounds=Bounds(0, np.concatenate([np.repeat(counts, num_nodes), np.array(training)])),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        return None
    return np.rint(result.x[:num]).astype(int).reshape(num_kinds, num_nodes).tolist()
