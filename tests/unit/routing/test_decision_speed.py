"""C-MLFQ's decision time with a grown tree: measured and printed, never judged."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from libra.core.events import AllocationChanged, ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.plan import Allocation, InstanceStatus, TrainLayout
from libra.core.rng import stream
from libra.routing.cmlfq import CMlfq

NUM_TRAJECTORIES = 20_000
MAX_RETURNS = 20


@pytest.mark.slow
def test_decisions_with_a_tree_of_20_000_trajectories(record_property: Callable[[str, object], None]) -> None:
    rng = stream("decision speed")
    layout = TrainLayout(tp=4, dp=4)
    tps = (1,) * 8 + (2,) * 4 + (4,) * 4
    engines = tuple(InstanceStatus(n, tp, (1, 2, 4).index(tp), "up") for n, tp in enumerate(tps))
    router = CMlfq()
    router.on(AllocationChanged(0.0, Allocation(layout, 4, engines, (4000, 12000, 40960)), "plan"))
    took_s: dict[str, list[float]] = {"tool return": [], "end": []}
    for number in range(NUM_TRAJECTORIES):
        (place,) = router.on(TrajectoryStart(0.0, number, f"p{number // 16 % 500}", number // 16, 0, 500, 0))
        context_tok = 500
        for turn in range(1, int(rng.integers(1, MAX_RETURNS)) + 1):
            payload_tok, status = int(rng.integers(50, 9000)) // turn, ("ok", "error")[int(rng.random() < 0.15)]
            context_tok += payload_tok + 50
            event = ToolReturned(0.0, number, place.instance, turn, "bash", payload_tok, status, 1.0, context_tok)  # type: ignore[arg-type,union-attr]
            started = time.perf_counter()
            (place,) = router.on(event)
            took_s["tool return"].append(time.perf_counter() - started)
        end = TrajectoryEnd(0.0, number, place.instance, "completed", 100, context_tok + 300, turn, 0.0)  # type: ignore[union-attr]
        started = time.perf_counter()
        router.on(end)
        took_s["end"].append(time.perf_counter() - started)
    assert len(router.tree) <= router.tree.max_nodes
    for what, seconds in took_s.items():
        p50, p99 = np.quantile(seconds[len(seconds) // 2 :], (0.5, 0.99)) * 1e6
        line = f"C-MLFQ {what}: p50 {p50:.0f} us, p99 {p99:.0f} us ({len(router.tree)} nodes, 20,000 trajectories)"
        record_property("report", line)
