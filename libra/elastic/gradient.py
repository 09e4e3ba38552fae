"""Weights that make the update the exact mean over the samples that count, whoever computed them.

The paper adds external gradients to a core replica's before the core's all-reduce; whether it rescales for the extra
samples is unknown (the released code divides by the number of *core* replicas only, which scales the update up with
every hybrid one). Where the loss is a mean over tokens, read "samples" as tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from libra.core.errors import ConfigError


def _total(num_samples: Sequence[int]) -> int:
    total = sum(num_samples)
    if min(num_samples, default=0) < 0 or not total:
        raise ConfigError("a mean gradient needs at least one sample", where="gradient sum", value=list(num_samples))
    return total


def mean_weights(num_samples: Sequence[int]) -> tuple[Fraction, ...]:
    """Weight of each replica's *mean* gradient, given its samples (0 for a placeholder that sends zeros). Sums to 1.

    Raises `ConfigError` when nobody has a sample.
    """
    total = _total(num_samples)
    return tuple(Fraction(count, total) for count in num_samples)


def sum_scale(num_samples: Sequence[int], num_core: int) -> Fraction:
    """Factor on every replica's *sum* of sample gradients such that the core's averaging all-reduce over `num_core`
    replicas, external sums added in before it, gives the mean. Placeholders send zeros and change nothing."""
    return Fraction(num_core, _total(num_samples))


def attach(hybrids: Sequence[int], num_core: int) -> tuple[tuple[int, ...], ...]:
    """Hybrid replicas that each core replica adds to its own: every one exactly once (counted twice, its samples would
    weigh double). Cores differ by at most one; all of them exchange in as many rounds as the longest list has, so that
    a core without a hybrid replica takes part in the collective too."""
    if num_core < 1:
        raise ConfigError("training has no core replica to attach to", where="gradient sum", value=num_core)
    return tuple(tuple(sorted(hybrids)[core::num_core]) for core in range(num_core))
