"""C-MLFQ, Libra's router (paper, section on C-MLFQ): a feedback queue whose feedback is what tools return.

A trajectory starts in the smallest bucket. At each tool return its state sequence grows by (tool, payload class,
status), the prefix tree says how much is left after such a sequence, and the trajectory moves to the bucket of
context + remaining, up or down, if mean and P90 agree on that bucket; else it stays. The tree learns when a
trajectory ends. Ours beyond the paper: enough evidence before an estimate counts, and a move must be worth its price.
"""

from __future__ import annotations

from libra.core.commands import Why
from libra.core.errors import ConfigError
from libra.core.events import ToolReturned, TrajectoryEnd, TrajectoryStart
from libra.core.records import ToolStatus
from libra.routing.buckets import bucket_of
from libra.routing.prefix_tree import LEVELS, MAX_NODES, Level, PrefixTree, Walk
from libra.routing.router import BucketRouter
from libra.routing.sample import MIN_EVIDENCE, Summary

PAYLOAD_BOUNDS_TOK = (500, 5000)
"""Largest small and medium payload: the defaults of the authors' released code; the paper gives none."""

MIN_REMAINING_SHARE = 0.02
"""Tokens that must be left per context token moved. On a 14B model re-prefill costs up to 172 us a context token
(32k tokens, 5.5 s at TP1), and a decode step saves up to 10 ms (16.5 ms at TP1, 6.4 ms at TP8): break-even at 0.017,
rounded up. A transfer is cheaper still, so whatever the backend chooses the move pays. 0 moves at any price."""


def state_of(tool: str, payload_tok: int, status: ToolStatus, bounds_tok: tuple[int, int] = PAYLOAD_BOUNDS_TOK) -> str:
    """`tool:class:status`. The status is the typed result of the tool, never read out of its text."""
    small, medium = bounds_tok
    size = "small" if payload_tok <= small else "medium" if payload_tok <= medium else "large"
    return f"{tool}:{size}:{status}"


class CMlfq(BucketRouter):
    """The router. `levels` limits the back-off (an ablation: only `shared` is a turn-index router)."""

    def __init__(
        self,
        *,
        levels: tuple[Level, ...] = LEVELS,
        payload_bounds_tok: tuple[int, int] = PAYLOAD_BOUNDS_TOK,
        min_evidence: int = MIN_EVIDENCE,
        max_nodes: int = MAX_NODES,
        min_remaining_share: float = MIN_REMAINING_SHARE,
    ) -> None:
        super().__init__()
        if not 0 <= payload_bounds_tok[0] < payload_bounds_tok[1]:
            raise ConfigError(
                "payload bounds must rise", where="C-MLFQ", value=payload_bounds_tok, mend="small < medium"
            )
        self.payload_bounds_tok = payload_bounds_tok
        self.min_remaining_share = min_remaining_share
        self.tree = PrefixTree(min_evidence=min_evidence, max_nodes=max_nodes, levels=levels)
        self._walks: dict[int, Walk] = {}

    def first(self, event: TrajectoryStart) -> Why:
        self._walks[event.trajectory] = Walk(event.prompt_id)
        return Why(bucket=0)

    def next(self, event: ToolReturned, current: int) -> Why:
        walk = self._walks[event.trajectory]
        state = state_of(event.tool, event.payload_tok, event.status, self.payload_bounds_tok)
        found = self.tree.find(walk.on(state, event.context_tok))
        if found is None:
            return Why(bucket=current)
        level, remaining = found
        context_tok, bounds_tok = event.context_tok, self.fleet.bounds_tok
        mean_tok, p90_tok = context_tok + remaining.mean_tok, context_tok + remaining.p90_tok
        wish = bucket_of(mean_tok, bounds_tok)
        if wish != current and not (wish == bucket_of(p90_tok, bounds_tok) and self._pays(event, remaining)):
            wish = current
        return Why(level, mean_tok, p90_tok, remaining.evidence, wish)

    def _pays(self, event: ToolReturned, remaining: Summary) -> bool:
        """Whether enough is left for the price of a move, or the trajectory has to move anyway."""
        if remaining.mean_tok >= self.min_remaining_share * event.context_tok:
            return True
        return not self.fleet.is_up(self.fleet.instance_of(event.trajectory))

    def ended(self, event: TrajectoryEnd) -> None:
        walk = self._walks.pop(event.trajectory)
        self.tree.learn(
            walk.visits,
            event.total_tok,
            is_censored=event.status != "completed",
            is_evidence=event.status != "aborted",
        )
