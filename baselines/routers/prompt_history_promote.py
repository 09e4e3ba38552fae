"""Prompt history with a floor: as `prompt_history`, but never in a bucket that the context has outgrown.

Not in the paper. The cheapest repair of a wrong prediction, and in a feasibility study the strongest router without
an oracle on the search workload.
"""

from __future__ import annotations

import msgspec

from baselines.routers.prompt_history import PromptHistory
from libra.core.commands import Why
from libra.core.events import ToolReturned
from libra.routing.buckets import bucket_of


class PromptHistoryPromote(PromptHistory):
    """The larger of the predicted bucket and the bucket of the context."""

    def next(self, event: ToolReturned, current: int) -> Why:
        why = super().next(event, current)
        floor = bucket_of(event.context_tok, self.fleet.bounds_tok)
        return msgspec.structs.replace(why, bucket=max(why.bucket, floor))
