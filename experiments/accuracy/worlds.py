"""Truths to judge the estimate in: the simulator as it is, and with another roofline, scheduler or law of lengths."""

from __future__ import annotations

from typing import Any

import msgspec

from experiments.accuracy.cases import Tail
from libra.backends.sim.options import SimOptions


class World(msgspec.Struct, frozen=True):
    """`options` are the simulator's; `tail` is the law of the trajectories' lengths."""

    name: str
    what: str
    options: dict[str, Any] = {}
    tail: Tail = "lognormal"

    def sim_options(self) -> SimOptions:
        return SimOptions(engine="compiled", **self.options)


WORLDS = {
    world.name: world
    for world in (
        World("base", "the simulator as it ships"),
        World(
            "additive-roofline",
            "matrix products take compute plus memory time, not their smooth maximum",
            {"replace": "gemm_power=1;moe_power=1"},
        ),
        World(
            "scheduler-lag",
            "turns start a step later (asynchronous scheduling), and a step costs the engine twice its time",
            {"async_lag_steps": 1, "replace": "step_overhead_s=0.002668"},
        ),
        World("pareto-tail", "body lengths follow a Pareto law of index 1.8 with the same median", {}, "pareto"),
    )
}
