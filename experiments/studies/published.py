"""Published step tables of other systems, set beside an overlap model of their own stage times (no cell is run).

A row could be simulated only if its source gave hardware, model, batch and lengths; none does, and the table says
what is missing in each.
"""

from __future__ import annotations

from libra.core.registry import StudySpec

STUDY = StudySpec("published", "published step tables beside the overlap model", lambda args: (), ("published",))
