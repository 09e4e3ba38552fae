"""Places trajectories in turn on equal instances: the smallest whole system, for tests."""

from libra.core.commands import ApplyPlan, Place, Why
from libra.core.events import RunStart, ToolReturned, TrajectoryStart
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.registry import Options, PolicySpec


class RoundRobinOptions(Options):
    crash_at: int = 0
    sticky: bool = True


class RoundRobin:
    def __init__(self, context):
        self.options, self.num = context.options, max(1, context.cluster.num_gpus // 2)
        self.placed = 0

    def decide(self, event):
        if isinstance(event, RunStart):
            instances = tuple(InstanceSpec(i, 1, bucket=i % 2) for i in range(self.num))
            return (ApplyPlan(Plan(TrainLayout(tp=1, dp=self.num), instances, (4096, event.max_context_tok))),)
        if isinstance(event, TrajectoryStart) or (isinstance(event, ToolReturned) and not self.options.sticky):
            self.placed += 1
            if self.placed == self.options.crash_at:
                raise RuntimeError("planned crash")
            return (Place(event.trajectory, self.placed % self.num, why=Why("prompt", 100.0, 200.0, 3.0, 0)),)
        if isinstance(event, ToolReturned):
            return (Place(event.trajectory, event.instance),)
        return ()


ROUND_ROBIN = PolicySpec("round-robin", "in turn", RoundRobin, RoundRobinOptions)
