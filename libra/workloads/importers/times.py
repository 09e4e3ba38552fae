"""Times as dumps write them, in seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from libra.workloads.importers.base import as_float


def epoch_s(value: Any) -> float | None:
    """Seconds since 1970 of a number or an ISO 8601 text (UTC where it names no zone); None for anything else."""
    if not isinstance(value, str):
        return as_float(value)
    try:
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def between_s(start: Any, end: Any) -> float | None:
    """Seconds from `start` to `end`, None unless both are known."""
    start_s, end_s = epoch_s(start), epoch_s(end)
    return None if start_s is None or end_s is None else end_s - start_s
