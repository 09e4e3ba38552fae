"""The state of the compiled core: what its arrays hold, by name. Imports no numba."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

BOUNDARY, TOOL, CALLBACK = range(3)
"""Kinds of events: an engine's step boundary, a tool's return, a callback of Python."""
TOOL_RETURNED, ENDED, TURN_OVER, DUE, NOTHING_LEFT, EVENTS_FULL, STEP_UNKNOWN = range(7)
"""Why `run` comes back: the trajectory `who` wants its next turn; it has ended; a turn on the leaving engine `who` is
over; the callback `who` is due; no event is left; the heap has to grow; a step of `who` tokens has no time yet."""
NUM_FIGURES = 7
"""Figures of a step model before its tables: `StepModel.figures_s`."""


def _record(floats: str, integers: str) -> np.dtype[Any]:
    return np.dtype([(name, "f8") for name in floats.split()] + [(name, "i8") for name in integers.split()])


HEAD = _record(
    "now_s",
    "count num_events num_due num_preemptions engine done_first done_last max_num_seqs max_batched_tok block_tok "
    "lag_steps num_tables",
)
"""`engine` is the slot whose boundary is carried out (or -1), `done_*` its finished turns that are not yet reported."""
EVENT = _record("t_s", "count kind who epoch")
ENGINE = _record(
    "segment_start_s boundary_s paused_until_s busy_s",
    "steps kv_read_tok num_admitted num_running num_prefilling segment_steps epoch recompute_asked at_rest is_leaving "
    "waiting_first waiting_last prefill_first prefill_last chunk_tok area longest_tok model "
    "capacity_tok used_tok evictable_tok num_resets lru_first lru_last",
)
TURN = _record(
    "arrived_s queue_s latency_s total_queue_s",
    "prompt prompt_tok context_tok remaining_tok done_tok finish_at admitted eligible_at started next cached_tok "
    "prefilled_tok num_preemptions total_cached_tok total_prefilled_tok total_preemptions",
)
"""A trajectory's turn and its totals. A negative latency ends the trajectory; `next` links queues."""
PREFIX = np.dtype([(name, "i4") for name in ("tok", "older", "newer", "is_evictable", "num_holders")])
"""What a key has in an engine's cache."""
RUNNING = _record("", "finish_at admitted key")


class State(NamedTuple):
    """Everything; `running` holds a heap for each engine, `times` figures and tables of each step model."""

    head: Any
    events: Any
    engines: Any
    turns: Any
    prefixes: Any
    running: Any
    times: Any
