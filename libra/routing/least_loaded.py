"""Length-blind routing: what a layout has before C-MLFQ (the ablation's first steps), and what verl does.

A trajectory starts on the least loaded engine of all and stays there, so that its prefix cache stays warm: verl's
agent loop picks the server with the fewest requests and keeps it for the conversation.
"""

from __future__ import annotations

from libra.routing.router import BucketRouter


class LeastLoaded(BucketRouter):
    """Sticky; leaves an engine only when it is no longer up. Its `Why` is empty: it predicts nothing."""
