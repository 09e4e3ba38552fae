"""Knobs of the simulated engines and of the run, as cell overrides `sim.*`; defaults are vLLM V1's unless said."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from libra.core.registry import Options


class SimOptions(Options):
    """Engine settings that every policy shares. They are part of a cell's identity."""

    max_num_seqs: int = Field(default=256, ge=1)
    """Sequences that an instance decodes at once."""
    max_batched_tok: int = Field(default=8192, ge=16)
    """Token budget of one engine step, decode and prefill chunks together."""
    async_lag_steps: int = Field(default=1, ge=0, le=1)
    """Steps by which a turn that reaches a busy engine starts later because the next step is scheduled already (vLLM's
    asynchronous scheduling); 0: the scheduler waits for each step's end."""
    block_tok: int = Field(default=16, ge=1)
    """Tokens of a KV block; prefix hits are whole blocks."""
    kv_transfer: bool = True
    """Whether engines have a KV connector; without one every move is a re-prefill."""
    after_sync: Literal["recompute", "keep"] = "recompute"
    """KV of turns in flight at a weight update: dropped and re-prefilled (AReaL), or kept."""
    profile_groups: int = Field(default=16, ge=1)
    """Groups of the profiling run that planners see at the start."""
    engine: Literal["fast", "stepwise"] = "fast"
    """Closed forms between events, or one event a step: the oracle of the former, hundreds of times slower."""
    check: bool = False
    """Verify KV, token and time invariants while running."""
