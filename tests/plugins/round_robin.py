"""The smallest whole system, as a user's plug-in: places trajectories in turn on equal engines; fails on request."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from libra.core.commands import ApplyPlan, Command, Place, Why
from libra.core.events import Event, RunStart, ToolReturned, TrajectoryStart
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.registry import Options, PolicyContext, PolicySpec


class RoundRobinOptions(Options):
    """`crash_at` raises at that start; `hang_at` makes the file `hang_file` there, which holds the process's number,
    and waits; `gpus_per_engine` 0 asks for a layout that fits nowhere."""

    crash_at: int = 0
    hang_at: int = 0
    hang_file: str = ""
    gpus_per_engine: int = Field(default=1, ge=0)


class RoundRobin:
    def __init__(self, context: PolicyContext) -> None:
        self.options = context.options
        self.num = max(1, context.cluster.num_gpus // 2)
        self.started = 0

    def decide(self, event: Event) -> Sequence[Command]:
        if isinstance(event, RunStart):
            tp = self.options.gpus_per_engine or 1024
            instances = tuple(InstanceSpec(number, tp, number % 2) for number in range(self.num))
            return (ApplyPlan(Plan(TrainLayout(tp=1, dp=self.num), instances, (1024, event.max_context_tok))),)
        if isinstance(event, TrajectoryStart):
            self.started += 1
            self._misbehave()
            why = Why("prompt", 1000.0, 2000.0, 3.0, 0)
            return (Place(event.trajectory, self.started % self.num, why=why),)
        return (Place(event.trajectory, event.instance),) if isinstance(event, ToolReturned) else ()

    def _misbehave(self) -> None:
        if self.started == self.options.crash_at:
            raise RuntimeError("planned crash\nsecond line")
        if self.started == self.options.hang_at:
            part = Path(f"{self.options.hang_file}.part")
            part.write_text(str(os.getpid()))
            part.rename(self.options.hang_file)
            time.sleep(600)


ROUND_ROBIN = PolicySpec("round-robin", "Trajectories in turn on equal engines", RoundRobin, RoundRobinOptions)
