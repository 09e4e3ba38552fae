"""One fixed heterogeneous layout, every router: what routing alone is worth.

The layout is the one in the authors' released 48-GPU configuration (rollout nodes of TP 1, 1, 2, 4; 16 GPUs train, 32
roll out). The paper compares routers "on the same heterogeneous buckets" and gives neither the layout nor the bounds:
ours are the 40 % and 75 % quantiles of the profile (assumed). Nothing moves after the start. The paper's embedding
router is not here yet.
"""

from __future__ import annotations

from collections.abc import Callable

from baselines.routers.least_loaded import LeastLoaded
from baselines.routers.mlfq import Mlfq
from baselines.routers.oracle import Oracle
from baselines.routers.prompt_history import PromptHistory
from baselines.routers.prompt_history_promote import PromptHistoryPromote
from baselines.routers.turn_index import TurnIndex
from libra.core.policy import ComposedPolicy, Router
from libra.core.registry import PolicyContext, PolicySpec
from libra.planning.uniform import PatternPlanner
from libra.routing.cmlfq import CMlfq


def build_pattern(context: PolicyContext) -> ComposedPolicy:
    """The layout with length-blind routing, which all others differ from in the router alone."""
    return ComposedPolicy("pattern-blind", PatternPlanner(context.cluster, context.model), LeastLoaded())


def with_router(name: str, router: Callable[[], Router], summary: str, *, uses_oracle: bool = False) -> PolicySpec:
    """Spec of the layout with another router."""

    def build(context: PolicyContext) -> ComposedPolicy:
        return build_pattern(context).with_(name=name, router=router())

    return PolicySpec(name, f"Released layout (TP 1, 1, 2, 4 a node), {summary}", build, uses_oracle=uses_oracle)


PATTERN = (
    with_router("pattern-blind", LeastLoaded, "length-blind: least loaded engine, then sticky"),
    with_router("pattern-mlfq", Mlfq, "MLFQ: one bucket up when the context crosses the bound"),
    with_router("pattern-cmlfq", CMlfq, "C-MLFQ"),
    with_router("pattern-turn-index", TurnIndex, "remaining length by number of tool returns"),
    with_router("pattern-prompt-history", PromptHistory, "total length of the prompt's finished samples"),
    with_router(
        "pattern-prompt-history-promote", PromptHistoryPromote, "prompt history, never below the context's bucket"
    ),
    with_router("pattern-oracle", Oracle, "true total length from the start (upper bound)", uses_oracle=True),
)
