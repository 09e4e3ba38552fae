"""Rows of `libra plan`: plans and why they lost, and what lies on each node."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from experiments.commands.output import figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from libra.core.hardware import Cluster
    from libra.core.plan import Plan
    from libra.planning.ranking import Ranked

PLAN_COLUMNS = ("", "training", "rollout", "rollout s", "training s", "step s", "idle", "against best", "why it lost")
NODE_COLUMNS = ("nodes", "training on GPUs", "rollout instances on GPUs")


def plan_row(ranked: Ranked) -> Sequence[object]:
    expected = ranked.plan.expected
    return (
        "best" if ranked.times_best == 1 else "", training_of(ranked.plan), rollout_of(ranked.plan),
        figure(expected.rollout_s), figure(expected.train_s), figure(expected.step_s),
        f"{ranked.rollout_idle:.0%} : {ranked.train_idle:.0%}", f"{ranked.times_best - 1:+.1%}", _why_not(ranked),
    )  # fmt: skip


def _why_not(ranked: Ranked) -> str:
    from libra.planning.search import HETEROGENEOUS_MARGIN, TIE_SHARE

    if ranked.times_best == 1:
        return ""
    is_mixed = len({i.tp for i in ranked.plan.instances}) > 1
    if is_mixed and ranked.times_best > 1 - HETEROGENEOUS_MARGIN and ranked.times_best <= 1 + TIE_SHARE:
        return f"mixed sizes must gain {HETEROGENEOUS_MARGIN:.0%}: they need right length predictions"
    return f"{ranked.bound_by} takes longer"


def training_of(plan: Plan) -> str:
    """GPUs and degrees of parallelism above 1."""
    train = plan.train
    degrees = {"TP": train.tp, "PP": train.pp, "CP": train.cp, "EP": train.ep, "DP": train.dp}
    shown = " ".join(f"{name}{size}" for name, size in degrees.items() if size > 1)
    return f"{train.num_gpus}: {shown or 'one GPU'}"


def rollout_of(plan: Plan) -> str:
    """GPUs and instances by size."""
    from collections import Counter

    sizes = Counter(i.tp for i in plan.instances)
    shown = " + ".join(f"{count} x TP{tp}" for tp, count in sorted(sizes.items(), reverse=True))
    return f"{plan.rollout_gpus}: {shown}"


def node_rows(plan: Plan, cluster: Cluster) -> Iterator[Sequence[object]]:
    """One row a node; neighbours with equal contents share one, without the instances' numbers."""
    from libra.planning.placement import TRAINING, node_sizes, place

    nodes: dict[int, tuple[list[int], list[tuple[int, tuple[int, ...]]]]] = {}
    for seat in place(plan, node_sizes(cluster)).seats:
        training, instances = nodes.setdefault(seat.node, ([], []))
        if seat.tenant == TRAINING:
            training.extend(seat.gpus)
        else:
            instances.append((seat.tenant[1], seat.gpus))

    def contents(node: int) -> tuple[str, str]:
        training, instances = nodes[node]
        return spans(training), ", ".join(f"TP{len(gpus)} at {spans(gpus)}" for _, gpus in instances)

    for texts, same in groupby(sorted(nodes), contents):
        yield (spans(list(same)), *texts)


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers with runs joined: 0-3, 6."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("-".join(map(str, run)) for run in found)


def seats_json(plan: Plan, cluster: Cluster) -> list[dict[str, Any]]:
    """Node and GPUs of each tensor-parallel group of training, in rank order, and of each instance by its id."""
    from libra.planning.placement import TRAINING, node_sizes, place

    return [
        {
            "stage": seat.tenant[0],
            **({"group": seat.group} if seat.tenant == TRAINING else {"instance": seat.tenant[1]}),
            "node": seat.node,
            "gpus": list(seat.gpus),
        }
        for seat in place(plan, node_sizes(cluster)).seats
    ]
