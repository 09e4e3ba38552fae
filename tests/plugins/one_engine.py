"""One engine of one device beside a training job of a given layout."""

from dataclasses import dataclass

from pydantic import Field

from libra.core.plan import Allocation, InstanceSpec, Plan, TrainLayout
from libra.core.policy import ComposedPolicy, Statistics
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.routing.cmlfq import CMlfq


class OneEngineOptions(Options):
    tp: int = Field(1, gt=0)
    """Tensor parallelism of the trainer."""
    pp: int = Field(1, gt=0)
    """Pipeline stages of the trainer."""
    dp: int = Field(1, gt=0)
    """Data-parallel replicas of the trainer."""


@dataclass(frozen=True)
class OneEngine:
    layout: TrainLayout

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        return Plan(self.layout, (InstanceSpec(0, 1),), (statistics.run.max_context_tok,))


def build(context: PolicyContext) -> ComposedPolicy:
    options = context.options
    layout = TrainLayout(tp=options.tp, pp=options.pp, dp=options.dp)
    return ComposedPolicy("one-engine", OneEngine(layout), CMlfq())


POLICY = PolicySpec("one-engine", "One TP-1 engine beside a given training layout", build, options=OneEngineOptions)
