"""Settings with which the tiny policy learns on one CPU core, per workload; found by experiment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TinySettings:
    """`warmup_steps` of imitation, then GRPO: one AdamW step of `rate` a batch, gradient norm clipped to 1.

    Lengths and turns are the environment's own (`max_turns`, `max_turn_tok`).
    """

    warmup_steps: int
    rate: float
    temperature: float = 1.0


SETTINGS = {
    "search-r1": TinySettings(warmup_steps=300, rate=3e-4),
    "r2e-gym": TinySettings(warmup_steps=600, rate=3e-4),
    "dapo-math": TinySettings(warmup_steps=400, rate=3e-4),
}
"""A held-out success of 10 to 60 % after the warm-up; GRPO moves it clearly within 100 steps."""


UNKNOWN = TinySettings(warmup_steps=400, rate=3e-4)
"""Of a plug-in's workload, for which nobody has looked: `live.warmup_steps` and `live.learning_rate` say otherwise."""


def settings_of(environment: str) -> TinySettings:
    """By the environment's name."""
    return SETTINGS.get(environment, UNKNOWN)
