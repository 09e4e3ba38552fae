"""Shared generator of the paper's workloads: groups of trajectories with heavy tails, group correlation and drift.

Total length is prompt plus a lognormal body, limited by the context; its mean drifts over training (the paper's
motivation). Part of the log-variance belongs to the prompt, the rest to the sample. What a group holds depends on
(workload, seed, group number) and the options only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from libra.core.errors import ConfigError
from libra.core.records import Trajectory, Turn
from libra.core.registry import Options
from libra.core.rng import stream
from libra.workloads.base import PROFILE_GROUP, Parameter, Provenance, document
from libra.workloads.lengths import Drift, lognormal_mu, share_over
from libra.workloads.turns import (
    FAILED_PAYLOAD,
    FAILED_TIME,
    LARGE_PAYLOAD_SHARE,
    TurnOptions,
    multi_turns,
    signal_share,
    single_turns,
)

DRIFT_STEPS = 500
"""Training steps of the paper's runs: 63.2 h of 454.16 s each for R2E-Gym make 501."""
PROMPT_SHARE = 8
"""A prompt takes at most this fraction (1/8) of the context: longer ones are filtered out in practice."""
MANY_TRUNCATED = 0.1
"""Share of trajectories at the length limit above which the user is told."""
NORMAL = NormalDist()

Sources = Mapping[str, tuple[Provenance, str]]


class SyntheticOptions(Options):
    """Groups, lengths, drift and reward. `*_tok` of the drift are means of total length; `prompt_tok` is a median."""

    prompts: int = Field(gt=0)
    group_size: int = Field(default=16, gt=0)
    num_steps: int = Field(default=DRIFT_STEPS, gt=0)
    num_prompts: int = Field(gt=0)
    initial_tok: float = Field(gt=0)
    final_tok: float = Field(gt=0)
    mean_tok: float = Field(gt=0)
    sigma: float = Field(gt=0, le=3)
    between_share: float = Field(default=0.5, ge=0, le=1)
    prompt_tok: int = Field(gt=0)
    prompt_sigma: float = Field(default=0.3, ge=0, le=1)
    initial_reward: float = Field(gt=0, lt=1)
    final_reward: float = Field(gt=0, lt=1)


class SyntheticWorkload:
    """A `Workload`; multi-turn when `options` are `TurnOptions` too.

    Raises `ConfigError` for a drift that no curve has, or means that do not fit between prompt and context limit.
    """

    def __init__(self, name: str, options: SyntheticOptions, sources: Sources, seed: int, max_context_tok: int) -> None:
        self.name, self.options, self.seed, self.max_context_tok = name, options, seed, max_context_tok
        self.group_size, self.num_steps = options.group_size, options.num_steps
        self.batch = options.prompts * options.group_size
        self._sources = sources
        self._turns = options if isinstance(options, TurnOptions) else None
        self._order = lru_cache(maxsize=2)(self._draw_order)
        self._length = _named(f"workload {name}: mean length", options.initial_tok, options.final_tok, options.mean_tok)
        # A mean two thirds of the way makes a curve that saturates within training.
        mean_reward = options.initial_reward + (options.final_reward - options.initial_reward) * 2 / 3
        self._reward = _named(f"workload {name}: reward", options.initial_reward, options.final_reward, mean_reward)
        self._check_lengths()
        self.warnings = self._find_warnings()

    def progress(self, step: int) -> float:
        """How far into the paper's training a step is, 0 to 1: the middle of the stretch that step s stands for.

        Middles, so that a short run has the same time mean as a long one.
        """
        return min((step + 0.5) / self.num_steps, 1.0)

    def mean_tok(self, progress: float) -> float:
        """Expected total tokens of a trajectory."""
        return self._length.at(progress)

    def mean_reward(self, progress: float) -> float:
        """Expected reward of a trajectory that was not cut at the length limit."""
        return self._reward.at(progress)

    def mu(self, progress: float) -> float:
        """Mean log of the body's length before the limit."""
        mean_prompt_tok = self._mean_prompt_tok
        return lognormal_mu(
            self.mean_tok(progress) - mean_prompt_tok, self.options.sigma, self.max_context_tok - mean_prompt_tok
        )

    def group(self, index: int) -> tuple[Trajectory, ...]:
        """See `Workload`; a prompt comes once per epoch of the data set."""
        assert index >= 0, f"group {index}"
        epoch, position = divmod(index, self.options.num_prompts)
        prompt_id = f"{self.name}:{self._order(epoch)[position]}"
        return self._group(index, prompt_id, self.progress(index // self.options.prompts), self._stream("group", index))

    def profile(self, num_groups: int) -> tuple[Trajectory, ...]:
        """See `Workload`; prompts that training never meets, at progress 0."""
        found: list[Trajectory] = []
        for index in range(num_groups):
            prompt_id, rng = f"{self.name}:profile-{index}", self._stream("profile", index)
            found += self._group(PROFILE_GROUP + index, prompt_id, 0.0, rng)
        return tuple(found)

    def parameters(self) -> tuple[Parameter, ...]:
        """See `Workload`."""
        return (*document(self.options, self._sources), *self._derived())

    def _group(self, index: int, prompt_id: str, progress: float, rng: np.random.Generator) -> tuple[Trajectory, ...]:
        options, size = self.options, self.group_size
        z_length, z_reward, z_prompt = self._stream("prompt", prompt_id).standard_normal(3).tolist()
        prompt_tok = self._prompt_tok(z_prompt)
        z_sample, u_reward = rng.standard_normal(size), rng.random(size)
        share = options.between_share
        log_tok = self.mu(progress) + options.sigma * (math.sqrt(share) * z_length + math.sqrt(1 - share) * z_sample)
        turns, is_truncated = self._split(np.exp(log_tok), self.max_context_tok - prompt_tok, rng)
        rewards = (u_reward < self._success_prob(progress, z_reward)) & ~is_truncated
        return tuple(
            Trajectory(
                prompt_id=prompt_id,
                group=index,
                sample=sample,
                prompt_tok=prompt_tok,
                turns=turns[sample],
                reward=1.0 if rewards[sample] else 0.0,
                status="truncated" if is_truncated[sample] else "completed",
            )
            for sample in range(size)
        )

    def _split(
        self, wanted_tok: NDArray[np.float64], limit_tok: int, rng: np.random.Generator
    ) -> tuple[list[tuple[Turn, ...]], NDArray[np.bool_]]:
        if self._turns is None:
            return single_turns(wanted_tok, limit_tok), wanted_tok > limit_tok
        return multi_turns(self._turns, wanted_tok, limit_tok, rng)

    def _success_prob(self, progress: float, z_reward: float) -> float:
        """Probit with unit variance between prompts: averages to `mean_reward` over prompts, exactly."""
        return NORMAL.cdf(math.sqrt(2) * NORMAL.inv_cdf(self.mean_reward(progress)) - z_reward)

    def _prompt_tok(self, z_prompt: float) -> int:
        tok = round(self.options.prompt_tok * math.exp(self.options.prompt_sigma * z_prompt))
        return min(max(tok, 1), max(self.max_context_tok // PROMPT_SHARE, 1))

    @property
    def _mean_prompt_tok(self) -> float:
        return self.options.prompt_tok * math.exp(self.options.prompt_sigma**2 / 2)

    def _stream(self, *what: object) -> np.random.Generator:
        return stream("workload", self.name, self.seed, *what)

    def _draw_order(self, epoch: int) -> NDArray[np.int64]:
        return self._stream("order", epoch).permutation(self.options.num_prompts)

    def _check_lengths(self) -> None:
        where = f"workload {self.name}"
        lowest, highest = sorted((self.options.initial_tok, self.options.final_tok))
        if self.options.prompt_tok > self.max_context_tok // PROMPT_SHARE:
            raise ConfigError(
                f"a median prompt takes more than 1/{PROMPT_SHARE} of the {self.max_context_tok:,} tokens of context",
                where=where,
                value=self.options.prompt_tok,
                mend="lower `prompt_tok`, or choose a model with a longer context limit",
            )
        if lowest <= self._mean_prompt_tok + 1:
            raise ConfigError(
                f"the mean prompt alone has {self._mean_prompt_tok:,.0f} tokens; the mean total must be larger",
                where=where,
                value=lowest,
                mend="raise `initial_tok` and `final_tok`, or lower `prompt_tok`",
            )
        if highest >= self.max_context_tok:
            raise ConfigError(
                f"the mean length must stay below the context limit of {self.max_context_tok:,} tokens",
                where=where,
                value=highest,
                mend="lower `initial_tok` and `final_tok`, or choose a model with a longer context limit",
            )

    def _truncated_share(self, progress: float) -> float:
        limit_tok = self.max_context_tok - self._mean_prompt_tok
        return share_over(self.mu(progress), self.options.sigma, limit_tok)

    def _find_warnings(self) -> tuple[str, ...]:
        share = max(self._truncated_share(0), self._truncated_share(1))
        if share < MANY_TRUNCATED:
            return ()
        return (f"Up to {share:.0%} of the trajectories are cut at the limit of {self.max_context_tok:,} tokens.",)

    def _derived(self) -> tuple[Parameter, ...]:
        def derived(name: str, value: str, source: str) -> Parameter:
            return Parameter(name, value, "derived", source)

        ends = f"{self.mu(0):.3f} -> {self.mu(1):.3f}"
        cut = f"{self._truncated_share(0):.1%} -> {self._truncated_share(1):.1%}"
        time = f"{1 / self._length.rate:.3f} of training" if self._length.rate else "linear"
        stands_for = f"{DRIFT_STEPS / self.num_steps:g} training steps"
        found = (
            derived("batch", f"{self.batch:,}", "prompts x group_size."),
            derived("max_context_tok", f"{self.max_context_tok:,}", "The model's limit; the paper's is 40,960."),
            derived("body_mu", ends, "Solved so that the mean total length, limited by the context, is as stated."),
            derived("truncated_share", cut, "Probability that the length drawn is beyond the context limit."),
            derived("drift_time", time, "Time constant solved so that the time mean is `mean_tok`."),
            derived(
                "one_step", stands_for, f"The paper's runs have about {DRIFT_STEPS} steps; ours span the same drift."
            ),
        )
        return found if self._turns is None else (*found, *_tool_parameters(self._turns))


def _named(where: str, initial: float, final: float, mean: float) -> Drift:
    try:
        return Drift(initial, final, mean)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, value=error.value, mend=error.mend) from None


def _tool_parameters(options: TurnOptions) -> tuple[Parameter, ...]:
    assumed = "A failed call returns a trace back or usage text, and often only after a time-out or retry."
    signal = f"Failed, or among the largest {LARGE_PAYLOAD_SHARE:.0%} of payloads; has an effect with tool_signal > 0."
    return (
        Parameter("failed_payload_factor", f"{FAILED_PAYLOAD:g}", "assumed", assumed),
        Parameter("failed_time_factor", f"{FAILED_TIME:g}", "assumed", assumed),
        Parameter("signal_share", f"{signal_share(options):.3f}", "derived", signal),
    )
