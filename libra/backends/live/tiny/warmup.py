"""Supervised warm-up: the policy imitates demonstrations until it is right now and then.

A demonstration is encoded piece by piece, exactly as a rollout appends it (prompt by chat template, then each turn and
each tool return on its own), and only what the policy wrote is learned. One thread and a fixed number of steps: the
same seed gives the same bytes on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from libra.backends.live.tiny.tokenizer import prompt_ids, text_ids
from libra.core.errors import ConfigError
from libra.workloads.environments.base import Demonstration, Environment

IGNORED = -100
"""torch's label for positions without a loss."""

POOL_BATCHES = 16
"""Batches whose sequences are sorted by length together: little padding, still a fresh mixture every few steps."""


@dataclass(frozen=True)
class WarmupOptions:
    """`rate` is the peak of a schedule that rises over `rise` of the steps and falls to zero on a cosine."""

    steps: int
    batch: int = 32
    rate: float = 3e-3
    rise: float = 0.05
    decay: float = 0.01
    max_tok: int = 768


@dataclass(frozen=True)
class Encoded:
    """One demonstration: `ids` and, at each position, whether the policy wrote that token."""

    ids: list[int]
    by_policy: list[bool]


def encode(tokenizer: PreTrainedTokenizerFast, demonstration: Demonstration, stop: Sequence[str]) -> Encoded:
    """A turn that no stop tag ends is ended with the end token: an engine has to be told somehow."""
    ids = prompt_ids(tokenizer, demonstration.prompt)
    by_policy = [False] * len(ids)
    for segment in demonstration.segments:
        piece = text_ids(tokenizer, segment.text)
        if segment.by_policy and not segment.text.endswith(tuple(stop)):
            piece = [*piece, tokenizer.eos_token_id]
        ids += piece
        by_policy += [segment.by_policy] * len(piece)
    return Encoded(ids, by_policy)


def batches(
    tokenizer: PreTrainedTokenizerFast, environments: Sequence[Environment], seed: int, options: WarmupOptions
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless (ids, labels), each `[batch, length]`, padded on the right; environments take turns.

    Raises `ConfigError` where `max_tok` leaves no demonstrations for a batch.
    """
    chance = np.random.default_rng([seed, 1])
    streams = [(environment, environment.demonstrations(seed)) for environment in environments]
    while True:
        pool: list[Encoded] = []
        while len(pool) < POOL_BATCHES * options.batch:
            for environment, stream in streams:
                pool.append(encode(tokenizer, next(stream), environment.stop))
        pool = [one for one in pool if len(one.ids) <= options.max_tok]
        if len(pool) < options.batch:
            raise ConfigError(f"no demonstration is as short as {options.max_tok} tokens", where="max_tok")
        pool.sort(key=lambda one: len(one.ids))
        starts = range(0, len(pool) - options.batch + 1, options.batch)
        for start in chance.permutation(np.array(starts)):
            yield _padded(pool[start : start + options.batch], tokenizer.pad_token_id)


def _padded(several: Sequence[Encoded], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention keeps what is padded on the right out of every real position: no mask is needed."""
    length = max(len(one.ids) for one in several)
    ids = torch.full((len(several), length), pad)
    labels = torch.full((len(several), length), IGNORED)
    for row, one in enumerate(several):
        tokens = torch.tensor(one.ids)
        ids[row, : len(tokens)] = tokens
        labels[row, : len(tokens)] = torch.where(torch.tensor(one.by_policy), tokens, IGNORED)
    return ids, labels


def loss_of(model: Qwen3ForCausalLM, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the policy's tokens; only their positions pass the output layer."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
    wanted = labels[:, 1:]
    learned = wanted != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), wanted[learned])


def rate_at(step: int, options: WarmupOptions) -> float:
    """Learning rate of a step, counted from 0."""
    rise = max(1, round(options.rise * options.steps))
    if step < rise:
        return options.rate * (step + 1) / rise
    done = (step - rise) / max(1, options.steps - rise)
    return options.rate * 0.5 * (1 + math.cos(math.pi * done))


def warm_up(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    environments: Sequence[Environment],
    seed: int,
    options: WarmupOptions,
    progress: Callable[[str], None] = lambda line: None,
) -> float:
    """Trains `model` in place; the mean loss of the last steps. `progress` gets ten lines."""
    every = max(1, options.steps // 10)
    losses: list[float] = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=options.decay)
    source = batches(tokenizer, environments, seed, options)
    model.train()
    with one_thread():
        for step in range(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, options)
            loss = loss_of(model, *next(source))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
            if (step + 1) % every == 0:
                progress(f"warm-up step {step + 1}/{options.steps}: loss {np.mean(losses[-every:]):.3f}")
    model.eval()
    return float(np.mean(losses[-every:]))


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order: what makes the weights the same on every run; also the share that we promise to take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
