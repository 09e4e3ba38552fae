"""Our agent loop: one trajectory of an environment, token in and token out (verl/experimental/agent_loop).

What an engine generated is never tokenised again; a tool's text is tokenised once, enters the context, and is masked.
"""

from __future__ import annotations

import importlib
import random
import time
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from libra.core.records import ToolReturn
from libra.integrations.settings import Settings, read_settings
from libra.workloads.environments.base import Environment, Episode, Task


@cache
def settings_of(settings_file: str) -> Settings:
    return read_settings(Path(settings_file))


@cache
def environment_of(settings_file: str) -> Environment:
    """One environment a process. The function that opens it lies above this package, so its name is data."""
    settings = settings_of(settings_file)
    module, _, function = settings.environment.partition(":")
    return getattr(importlib.import_module(module), function)(settings.environment_options)


class RewardShuffle:
    """The control: hands out the reward of a trajectory drawn among the last `SIZE`, the present one among them."""

    SIZE = 256
    """Two batches of the default size: long enough that a group's rewards say nothing of its samples."""

    def __init__(self) -> None:
        self._rewards: deque[float] = deque(maxlen=self.SIZE)
        self._rng = random.Random(0)

    def exchange(self, reward: float) -> float:
        self._rewards.append(reward)
        return self._rng.choice(self._rewards)


SHUFFLE = RewardShuffle()


@register("libra_environment")
class EnvironmentAgentLoop(AgentLoopBase):
    """`agent_name: libra_environment` in a row whose `extra_info.task` is a `Task` as JSON."""

    def __init__(self, *args: Any, hf_model_type: str | None = None, **kwargs: Any) -> None:
        """The model family is kept from verl's tokenizing of chat turns: one assistant message holds all of ours."""
        super().__init__(*args, **kwargs)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        environment = environment_of(self.rollout_config.router_config_path)
        task = msgspec.json.decode(kwargs["extra_info"]["task"], type=Task)
        prompt_ids = await self.ct_build_initial_tokens(list(kwargs["raw_prompt"]))
        episode = environment.start(task)
        try:
            return await _Rollout(self, environment, episode, sampling_params, prompt_ids).run()
        finally:
            await episode.close()


class _Rollout:
    """Tokens of one trajectory as they come."""

    def __init__(
        self, loop: AgentLoopBase, environment: Environment, episode: Episode, params: dict[str, Any], prompt: list[int]
    ) -> None:
        from libra.integrations.verl.agent_loop import CURRENT

        self.loop, self.environment, self.episode, self.prompt_ids = loop, environment, episode, prompt
        self.trajectory = CURRENT.get()
        self.shuffles = settings_of(loop.rollout_config.router_config_path).shuffle_rewards
        self.params = {**params, "stop": list(environment.stop), "include_stop_str_in_output": True}
        self.response_ids: list[int] = []
        self.mask: list[int] = []
        self.log_probs: list[float] = []
        self.num_turns = 0
        self.generate_s = self.tool_s = 0.0
        self.preempted = 0

    async def run(self) -> AgentLoopOutput:
        self.trajectory.status = "truncated"
        while self.num_turns < self.environment.max_turns and (left_tok := self._left_tok()) > 0:
            text = await self._turn(min(left_tok, self.environment.max_turn_tok))
            if not await self._observe(text):
                is_closed = any(tag in text for tag in self.environment.stop)
                is_cut = self.episode.is_cut or (self.trajectory.was_cut and not is_closed)
                self.trajectory.status = "truncated" if is_cut else "completed"
                break
        reward = await self.episode.reward()
        if self.shuffles and not self.trajectory.is_evaluation:
            reward = SHUFFLE.exchange(reward)
        spans = self.trajectory.spans
        return AgentLoopOutput(
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids,
            response_mask=self.mask,
            response_logprobs=self.log_probs,
            reward_score=reward,
            num_turns=self.num_turns,
            metrics=AgentLoopMetrics(
                generate_sequences=self.generate_s, tool_calls=self.tool_s, num_preempted=self.preempted
            ),
            extra_fields={
                "min_global_steps": min(span.version for span in spans),
                "max_global_steps": max(span.version for span in spans),
                "reward_extra_info": {"status": self.trajectory.status},
            },
        )

    def _left_tok(self) -> int:
        return self.loop.rollout_config.response_length - len(self.response_ids)

    async def _turn(self, limit_tok: int) -> str:
        started_s = time.monotonic()
        output = await self.loop.server_manager.generate(
            request_id=self.trajectory.key,
            prompt_ids=self.prompt_ids + self.response_ids,
            sampling_params={**self.params, "max_tokens": limit_tok},
        )
        self.generate_s += time.monotonic() - started_s
        self.preempted += output.num_preempted or 0
        self.num_turns += 1
        self._append(output.token_ids, 1, output.log_probs or [])
        return self.loop.tokenizer.decode(output.token_ids, skip_special_tokens=True)

    async def _observe(self, text: str) -> bool:
        """Whether the trajectory goes on. A tool's text that no longer fits is cut, and the trajectory truncated."""
        seen = await self.episode.step(text)
        if seen is None:
            return False
        ids = self.loop.tokenizer.encode(seen.text, add_special_tokens=False)[: self._left_tok()]
        self._append(ids, 0, [0.0] * len(ids))
        self.tool_s += seen.latency_s
        self.trajectory.tool = ToolReturn(seen.tool, len(ids), seen.status, seen.latency_s)
        return True

    def _append(self, ids: list[int], mask: int, log_probs: list[float]) -> None:
        self.response_ids += ids
        self.mask += [mask] * len(ids)
        self.log_probs += log_probs
