"""Online correction of the estimate from telemetry alone: what steps took against what was expected of them.

A factor for rollout, and a factor with a fixed overhead for training. The overhead starts at 0 and is learned only
when the steps of the window differ enough in tokens to tell it from the factor.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from libra.core.events import PipelineKind, StepEnd

SMOOTHING = 0.3
"""Weight of the newest step in the moving average: about three steps of memory, less than the window's eight."""
CLIP = (0.25, 4.0)
"""A correction beyond four-fold says that the layout is not the one assumed, not that the estimate is off (assumed)."""
MIN_SPREAD = 1.2
"""Largest over smallest estimate in the window from which slope and intercept can be told apart (assumed)."""
MIN_STEPS = 4
"""Steps that a line with two parameters needs to be over-determined twofold."""
WAITING_SHARE = 0.05
"""A trainer that waits less than this share of a step tells nothing about rollout in an asynchronous pipeline."""


class Correction(msgspec.Struct, frozen=True):
    """Estimate to expectation: `rollout * x`, and `train * x + train_fixed_s`."""

    rollout: float = 1.0
    train: float = 1.0
    train_fixed_s: float = 0.0


def moving_factor(ratios: Sequence[float], start: float = 1.0) -> float:
    """Exponential moving average, from `start`, of measured over estimated, oldest first; each ratio is clipped."""
    factor = start
    for ratio in ratios:
        factor += SMOOTHING * (float(np.clip(ratio, *CLIP)) - factor)
    return factor


def fit_training(estimated_s: Sequence[float], measured_s: Sequence[float]) -> tuple[float, float]:
    """Factor and fixed overhead of training, oldest step first; the overhead is 0 unless the window can tell it."""
    x, y = np.asarray(estimated_s, dtype=float), np.asarray(measured_s, dtype=float)
    if len(x) >= MIN_STEPS and x.max() >= MIN_SPREAD * x.min():
        slope, intercept = np.polyfit(x, y, 1)
        if CLIP[0] <= slope <= CLIP[1] and 0 <= intercept <= y.min():
            return float(slope), float(intercept)
    return moving_factor([b / a for a, b in zip(x, y, strict=True)]), 0.0


def observed_rollout_s(step: StepEnd, kind: PipelineKind) -> float | None:
    """Rollout time that a step shows, or None when it shows none.

    A barrier or colocated step reports its makespan. An asynchronous one reports the trainer's wait: if there was
    any, rollout set the pace and took the whole step but the sync.
    """
    if kind != "async":
        return step.rollout_s if step.rollout_s > 0 else None
    waited = step.rollout_s > WAITING_SHARE * step.step_s
    return step.step_s - step.sync_s if waited and step.step_s > step.sync_s else None
