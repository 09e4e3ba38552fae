"""Trajectories of a tiny policy by plain torch: batched, with a KV cache, and tools between the turns.

Judges a warmed-up policy on held-out tasks before any engine is started. Training runs sample with vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3ForCausalLM

from libra.backends.live.tiny.tokenizer import prompt_ids, text_ids
from libra.workloads.environments.base import Environment, Episode, Task


@dataclass
class Rollout:
    """One trajectory: its context so far, which tokens of it the policy wrote, and what it earned."""

    task: Task
    ids: list[int]
    by_policy: list[bool]
    reward: float = 0.0
    num_turns: int = 0
    is_over: bool = False
    texts: list[str] = field(default_factory=list)

    def append(self, ids: Sequence[int], by_policy: bool) -> None:
        self.ids += ids
        self.by_policy += [by_policy] * len(ids)


@torch.inference_mode()
def sample_turns(
    model: Qwen3ForCausalLM,
    contexts: Sequence[Sequence[int]],
    stop: frozenset[int],
    max_tok: int,
    temperature: float,
    generator: torch.Generator,
) -> list[list[int]]:
    """One turn for each context, the stop token included; `temperature` 0 takes the likeliest token."""
    num, length = len(contexts), max(len(context) for context in contexts)
    ids = torch.zeros((num, length), dtype=torch.long)
    mask = torch.zeros((num, length + max_tok), dtype=torch.long)
    for row, context in enumerate(contexts):
        ids[row, length - len(context) :] = torch.tensor(context)
        mask[row, length - len(context) :] = 1
    position = (mask[:, :length].cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    turns: list[list[int]] = [[] for _ in contexts]
    live = list(range(num))
    for step in range(max_tok):
        out = model.model(
            input_ids=ids,
            attention_mask=mask[:, : length + step],
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
        )
        logits = model.lm_head(out.last_hidden_state[:, -1])
        if temperature:
            chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            chosen = logits.argmax(-1, keepdim=True)
        tokens = chosen[:, 0].tolist()
        for row, token in zip(live, tokens, strict=True):
            turns[row].append(token)
        keep = [index for index, token in enumerate(tokens) if token not in stop]
        if not keep:
            break
        if len(keep) < len(live):
            kept = torch.tensor(keep)
            cache.batch_select_indices(kept)
            chosen, mask, position = chosen[kept], mask[kept], position[kept]
            live = [live[index] for index in keep]
        ids, position = chosen, position[:, -1:] + 1
    return turns


def stop_ids(tokenizer: PreTrainedTokenizerFast, environment: Environment) -> frozenset[int]:
    """Tokens that end a turn."""
    return frozenset([tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(environment.stop))])


def roll_out(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment,
    tasks: Sequence[Task],
    seed: int,
    temperature: float = 1.0,
) -> list[Rollout]:
    """One trajectory per task, in order; all of them are one batch."""
    return asyncio.run(_roll_out(model, tokenizer, environment, tasks, seed, temperature))


async def _roll_out(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment,
    tasks: Sequence[Task],
    seed: int,
    temperature: float,
) -> list[Rollout]:
    generator = torch.Generator().manual_seed(seed)
    stop = stop_ids(tokenizer, environment)
    prompts = {task.id: prompt_ids(tokenizer, task.prompt) for task in tasks}
    rollouts = [Rollout(task, list(prompts[task.id]), [False] * len(prompts[task.id])) for task in tasks]
    episodes = [environment.start(task) for task in tasks]
    try:
        while live := [index for index, rollout in enumerate(rollouts) if not rollout.is_over]:
            room = model.config.max_position_embeddings - max(len(rollouts[index].ids) for index in live)
            turns = sample_turns(
                model,
                [rollouts[index].ids for index in live],
                stop,
                min(environment.max_turn_tok, room),
                temperature,
                generator,
            )
            await asyncio.gather(
                *(
                    _answer(tokenizer, environment, rollouts[index], episodes[index], turn, model)
                    for index, turn in zip(live, turns, strict=True)
                )
            )
        for rollout, episode in zip(rollouts, episodes, strict=True):
            rollout.reward = await episode.reward()
    finally:
        await asyncio.gather(*(episode.close() for episode in episodes))
    return rollouts


async def _answer(
    tokenizer: PreTrainedTokenizerFast,
    environment: Environment,
    rollout: Rollout,
    episode: Episode,
    turn: list[int],
    model: Qwen3ForCausalLM,
) -> None:
    """Append a turn and what the environment returns; the trajectory is over when nothing comes or nothing fits."""
    text = tokenizer.decode(turn, skip_special_tokens=True)
    rollout.append(turn, by_policy=True)
    rollout.texts.append(text)
    rollout.num_turns += 1
    observation = await episode.step(text)
    if observation is None or rollout.num_turns >= environment.max_turns:
        rollout.is_over = True
        return
    rollout.texts.append(observation.text)
    rollout.append(text_ids(tokenizer, observation.text), by_policy=False)
    rollout.is_over = len(rollout.ids) >= model.config.max_position_embeddings - 1


def success(rollouts: Sequence[Rollout]) -> float:
    """Mean reward."""
    return sum(rollout.reward for rollout in rollouts) / len(rollouts)
