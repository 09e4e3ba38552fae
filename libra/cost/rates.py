"""Efficiencies and overheads of the estimate: assumed at first, learned from a user's own runs by `refit`."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Rates(msgspec.Struct, frozen=True):
    """Shares are of the data sheet's peak, times in seconds; all defaults are assumed."""

    memory: float = 0.7
    """Of the memory bandwidth that streaming kernels reach: the usual 60-80 %."""
    prefill: float = 0.5
    """Of peak FLOP/s in prefill chunks: half, since chunks share their step with decoding."""
    moe: float = 0.25
    """The same for grouped expert GEMMs, which are small and uneven: half of a dense one's."""
    moe_memory: float = 0.7
    """Of the memory bandwidth in decode steps of expert layers: the same as any streaming kernel's."""
    kernel_s: float = 5e-6
    """Least time of one kernel, launch latency hidden by graphs: a few microseconds."""
    step_s: float = 1e-3
    """Scheduler, sampler and detokeniser per engine step: about a millisecond in Python engines."""
    sequence_s: float = 10e-6
    """Their part per running sequence."""
    skew: float = 0.5
    """Exponent of the experts' popularity by rank (Zipf): 0 is even. Routers are balanced in training, but not on
    every batch."""
    train: float = 0.45
    """Of peak FLOP/s in training: published model FLOP utilisations of dense models are 40-56 %."""
    moe_train: float = 0.22
    """The same for experts, half of a dense model's: small grouped GEMMs."""
    train_memory: float = 0.35
    """Of the memory bandwidth in norms, residuals, rotary and activations of training: half of a streaming kernel's,
    since frameworks fuse few of them and widen to FP32 between."""
    train_link: float = 0.7
    """Of a link in the all-reduces of training: protocol and pipeline fill take a quarter to a third."""
    network: float = 0.9
    """Of what a node's NICs move, in the collectives of training and refresh: pipeline fill takes some."""
    train_fixed_s: float = 0.0
    """Of a training step whatever its tokens: data, launches, off-load. Unknown before a run tells."""
    sync_fixed_s: float = 0.0
    """Of a weight refresh whatever its bytes: pausing engines, metadata. Unknown before a run tells."""
    switch_s: float = 0.0
    """Of a colocated step: both changes of sides between rollout and training. Unknown before a run tells."""


SPREAD = 0.35
"""Log standard deviation of a share or time before any run: two thirds of machines within a factor of 1.4 (assumed)."""
FIXED_S = 10.0
"""Scale on which fixed times are looked for, weakly (assumed)."""
FIXED = ("train_fixed_s", "sync_fixed_s", "switch_s")
NOISE = 0.03
"""Log standard deviation of a run's mean time about an estimate whose rates are right (assumed)."""


class Observed(msgspec.Struct, frozen=True):
    """Measured seconds of one quantity of a run, and the relative error of that mean beyond the estimate's own."""

    seconds: float
    spread: float = 0.0


def refit(predict: Callable[[Rates], Array], observed: list[Observed], prior: Rates | None = None) -> Rates:
    """The most probable rates, given what several runs took: log errors against the distance from what was assumed.

    `predict` gives the estimate of each observation in seconds. Rates that no observation depends on stay what they
    are. Raises `ValueError` for an observation that is not positive and finite.
    """
    from scipy.optimize import least_squares

    start = prior or Rates()
    measured = np.array([each.seconds for each in observed])
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise ValueError(f"observed seconds must be positive and finite, got {measured.tolist()}")
    scale = np.hypot(NOISE, [each.spread for each in observed])
    names = Rates.__struct_fields__

    def rates_at(x: Array) -> Rates:
        values = {
            name: getattr(start, name) + FIXED_S * value if name in FIXED else getattr(start, name) * math.exp(value)
            for name, value in zip(names, x.tolist(), strict=True)
        }
        return msgspec.structs.replace(start, **values)

    def residuals(x: Array) -> Array:
        misfit = np.log(predict(rates_at(x)) / measured) / scale
        from_prior = [value / (3.0 if name in FIXED else SPREAD) for name, value in zip(names, x, strict=True)]
        return np.concatenate([misfit, from_prior])

    low = np.array([-getattr(start, name) / FIXED_S - 1e-9 if name in FIXED else -2.0 for name in names])
    # A tight step: the estimate has kinks, where a coarse one meets another branch.
    found = least_squares(residuals, np.zeros(len(names)), bounds=(low, 10.0), diff_step=1e-3, loss="soft_l1")
    return rates_at(found.x)
