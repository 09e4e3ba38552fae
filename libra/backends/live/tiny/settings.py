"""Settings with which the tiny policy learns on one CPU core, per workload; found by experiment."""

from __future__ import annotations

from dataclasses import dataclass

from libra.core.errors import ConfigError


@dataclass(frozen=True)
class TinySettings:
    """`warmup_steps` of imitation, then GRPO: one AdamW step of `rate` a batch, gradient norm clipped to 1.

    Lengths and turns are the environment's own (`max_turns`, `max_turn_tok`).
    """

    warmup_steps: int
    rate: float
    prompts: int = 8
    samples: int = 16
    temperature: float = 1.0


SETTINGS = {
    "search-r1": TinySettings(warmup_steps=300, rate=3e-4),
    "r2e-gym": TinySettings(warmup_steps=600, rate=3e-4),
    "dapo-math": TinySettings(warmup_steps=400, rate=3e-4),
}
"""A held-out success of 10 to 60 % after the warm-up; GRPO moves it clearly within 100 steps."""


def settings_of(workload: str) -> TinySettings:
    """Raises `ConfigError` for a workload that no settings were found for."""
    if workload not in SETTINGS:
        raise ConfigError("no tiny policy for this workload", where="workload", value=workload, allowed=SETTINGS)
    return SETTINGS[workload]
