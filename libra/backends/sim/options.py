"""Knobs of the simulated engines and of the run, as cell overrides `sim.*`; defaults are vLLM V1's unless said."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from libra.core.registry import Options


class SimOptions(Options):
    """Engine settings that every policy shares. They are part of a cell's identity."""

    max_num_seqs: int = Field(default=256, ge=1, description="Sequences decoded at once by an instance (vLLM default).")
    max_batched_tok: int = Field(default=8192, ge=16, description="Token budget of one engine step (vLLM V1 default on GPUs).")
    block_tok: int = Field(default=16, ge=1, description="Tokens of a KV block; prefix hits are whole blocks (vLLM default).")
    kv_transfer: bool = Field(default=True, description="Engines have a KV connector; without one a move is a re-prefill.")
    after_sync: Literal["recompute", "keep"] = Field(
        default="recompute", description="KV of turns in flight at a weight update: re-prefilled (AReaL), or kept."
    )
    profile_groups: int = Field(default=16, ge=1, description="Groups of the profiling run that planners see at the start.")
    check: bool = Field(default=False, description="Verify KV, token and time invariants while running.")
