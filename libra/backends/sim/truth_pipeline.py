"""The 1F1B schedule with micro-batches of different lengths, operation by operation.

Every stage first runs as many forward passes as stages follow it, then one backward for each further forward, then the
backward passes that are left (PipeDream-Flush, Megatron's default). Stages are equal; a pass waits for its neighbour.
"""

from __future__ import annotations

from collections.abc import Sequence

Pass = tuple[float, float]
"""Forward and backward seconds of a micro-batch on one stage."""


def one_f_one_b_s(passes: Sequence[Pass], num_stages: int) -> float:
    """Makespan of a step. Equal micro-batches take (n + stages - 1)(forward + backward)."""
    num = len(passes)
    orders = [_order(num, min(num, num_stages - 1 - stage)) for stage in range(num_stages)]
    done_s: dict[tuple[int, int, bool], float] = {}
    """(stage, micro-batch, is backward) -> end."""
    free_s, place = [0.0] * num_stages, [0] * num_stages
    left = 2 * num * num_stages
    while left:
        for stage in range(num_stages):
            while place[stage] < len(orders[stage]):
                micro_batch, is_backward = orders[stage][place[stage]]
                ready_s = _ready_s(done_s, stage, micro_batch, is_backward, num_stages)
                if ready_s is None:
                    break
                free_s[stage] = max(free_s[stage], ready_s) + passes[micro_batch][is_backward]
                done_s[stage, micro_batch, is_backward] = free_s[stage]
                place[stage] += 1
                left -= 1
    return max(free_s)


def _order(num: int, warm_up: int) -> list[tuple[int, bool]]:
    """A stage's operations: (micro-batch, is backward)."""
    found = [(index, False) for index in range(warm_up)]
    for index in range(num - warm_up):
        found += [(warm_up + index, False), (index, True)]
    return found + [(index, True) for index in range(num - warm_up, num)]


def _ready_s(
    done_s: dict[tuple[int, int, bool], float], stage: int, micro_batch: int, is_backward: bool, num_stages: int
) -> float | None:
    """When an operation's input is there; None while that is unknown."""
    if not is_backward:
        return 0.0 if stage == 0 else done_s.get((stage - 1, micro_batch, False))
    if stage == num_stages - 1:
        return done_s.get((stage, micro_batch, False))
    return done_s.get((stage + 1, micro_batch, True))
