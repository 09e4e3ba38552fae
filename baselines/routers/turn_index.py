"""Turn-index routing: what is left is what all trajectories had left after as many tool returns.

Not in the paper; the control for its premise, since it hears neither the prompt nor what the tools said. Exactly C-MLFQ
with the coarsest level of its back-off alone, so the two differ in the key and in nothing else.
"""

from __future__ import annotations

from libra.routing.cmlfq import CMlfq


class TurnIndex(CMlfq):
    """C-MLFQ on the number of returns only."""

    def __init__(self) -> None:
        super().__init__(levels=("shared",))
