"""Engines that the user names, and any router: what a layout or a router is worth on a cluster of one's own.

Training gets every device that is left. Bounds are equal quantiles of the profile's total lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from baselines.routers.least_loaded import LeastLoaded
from baselines.routers.mlfq import Mlfq
from baselines.routers.prompt_history import PromptHistory
from baselines.routers.turn_index import TurnIndex
from libra.core.errors import ConfigError
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, InstanceSpec, Plan
from libra.core.policy import ComposedPolicy, Router, Statistics
from libra.core.registry import Options, PolicyContext, PolicySpec
from libra.planning.layout import ascending
from libra.planning.uniform import priced, train_layout
from libra.routing.cmlfq import CMlfq

Buckets = Literal["sizes", "engines"]


class HandOptions(Options):
    """`engines`: tensor-parallel sizes, small ones first. `buckets`: one a size, or one an engine."""

    engines: str = Field("1+1+2+4+4+4+8+8", pattern=r"^[1-9]\d*(\+[1-9]\d*)*$")
    buckets: Buckets = "sizes"


@dataclass(frozen=True)
class HandPlanner:
    """Engines of `sizes`, in their order; the rest of the cluster trains. Nothing moves."""

    cluster: Cluster
    model: Model
    sizes: tuple[int, ...]
    buckets: Buckets

    def plan(self, statistics: Statistics, allocation: Allocation | None) -> Plan:
        """Raises `ConfigError` when no device is left for training, `CapacityError` when training does not fit."""
        num_train = self.cluster.num_gpus - sum(self.sizes)
        if num_train < 1:
            raise ConfigError("no device is left for training", where="policy.engines",
                              value="+".join(map(str, self.sizes)), mend=f"{self.cluster.name} has "
                              f"{self.cluster.num_gpus} devices")  # fmt: skip
        ranks = sorted(set(self.sizes))
        bucket_of = ranks.index if self.buckets == "sizes" else None
        engines = tuple(
            InstanceSpec(id_, tp, id_ if bucket_of is None else bucket_of(tp)) for id_, tp in enumerate(self.sizes)
        )
        num = len(ranks) if bucket_of else len(engines)
        totals = [each.total_tok for each in statistics.finished] or [statistics.run.max_context_tok]
        cuts = [int(np.quantile(totals, (rank + 1) / num)) for rank in range(num - 1)]
        bounds = ascending(cuts, statistics.run.max_context_tok)
        layout = train_layout(self.cluster, self.model, statistics, num_train)
        return priced(Plan(layout, engines, bounds, note="by hand"), self.cluster, self.model, statistics)


def by_hand(name: str, router: Callable[[], Router], summary: str) -> PolicySpec:
    """Spec of the user's layout with a router."""

    def build(context: PolicyContext) -> ComposedPolicy:
        options: HandOptions = context.options
        sizes = tuple(int(size) for size in options.engines.split("+"))
        planner = HandPlanner(context.cluster, context.model, sizes, options.buckets)
        return ComposedPolicy(name, planner, router())

    return PolicySpec(name, f"Engines named by hand, {summary}", build, options=HandOptions)


BY_HAND = (
    by_hand("hand-blind", LeastLoaded, "length-blind: least loaded engine, then sticky"),
    by_hand("hand-mlfq", Mlfq, "MLFQ: one bucket up when the context crosses the bound"),
    by_hand("hand-turn-index", TurnIndex, "remaining length by number of tool returns"),
    by_hand("hand-prompt-history", PromptHistory, "total length of the prompt's finished samples"),
    by_hand("hand-cmlfq", CMlfq, "C-MLFQ"),
)
"""The user's layout with each router."""
