"""Tells the router's actor of every trajectory, whatever agent loop runs it (verl/trainer/ppo/v1/agent_loop_tq.py).

The worker opens a `Trajectory` in a context variable around each agent loop; the client that the loop generates with
reads it. So a stock agent loop needs no change: what its tools returned is then known by its size only.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import msgspec
import ray
from ray.exceptions import RayActorError, RayTaskError
from verl.experimental.agent_loop.tool_parser import ToolParser
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from libra.core.records import ToolReturn, TrajectoryStatus, VersionSpan
from libra.integrations.turns import Ended, Turn, TurnDone
from libra.integrations.verl import environment_loop  # noqa: F401 - registers itself

TOOL_LOOP = "tool_agent"
"""verl's name for its loop that calls tools."""
NOT_FOR_VLLM = ("mm_processor_output",)
"""What verl's agent loops pass on for other engines' servers; vLLM's refuses it."""

_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


@dataclass
class Trajectory:
    """One agent loop's run. `status` and `tool` may be set by the loop; else they are inferred."""

    key: str
    prompt_id: str
    group: str
    sample: int
    step: int
    is_evaluation: bool
    agent_name: str = ""
    status: TrajectoryStatus | None = None
    was_cut: bool = False
    """Whether the last turn ran into its token limit; verl's stop reason doesn't say."""
    turn_ids: list[int] = field(default_factory=list)
    """What the last turn generated."""
    tool: ToolReturn | None = None
    spans: list[VersionSpan] = field(default_factory=list)
    turn_ended_s: float = 0.0
    context_tok: int = 0
    refilled_tok: int = 0

    def turn(self, context_tok: int) -> Turn:
        """The question for the next turn. A tool that the loop kept to itself counts by its size and time."""
        tool, payload_tok = self.tool, context_tok - self.context_tok
        if tool is None and self.spans:
            tool = ToolReturn("unknown", payload_tok, "unknown", time.monotonic() - self.turn_ended_s)
        return Turn(self.key, self.prompt_id, self.group, self.sample, self.step, context_tok, tool)

    @property
    def ending(self) -> TrajectoryStatus:
        return self.status or ("truncated" if self.was_cut else "completed")


CURRENT: ContextVar[Trajectory] = ContextVar("libra_trajectory")


class LibraClient(LLMServerClient):
    """Generates a turn, over weight refreshes and lost engines: tokens that came are kept, the rest is asked for again.

    Stands in for verl's `FullyAsyncLLMServerClient`, which waits a second before each retry and merges versions.
    Reports are waited for: Ray may take up an actor's calls in another order than they were made in.
    `end_id` is the token that a model ends a turn with.
    """

    end_id: int | None = None

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **kwargs: Any
    ) -> TokenOutput:
        trajectory = CURRENT.get()
        kwargs = {name: value for name, value in kwargs.items() if value and name not in NOT_FOR_VLLM}
        limit_tok = sampling_params.get("max_tokens") or self.config.actor_rollout_ref.rollout.response_length
        token_ids: list[int] = []
        log_probs: list[float] = []
        spans: list[VersionSpan] = []
        cached_tok, refilled_tok, preempted, stop_reason = None, 0, 0, None
        queue_s: float | None = 0.0
        turn = trajectory.turn(len(prompt_ids))
        while True:
            params = {**sampling_params, "max_tokens": limit_tok - len(token_ids)}
            output = await self._one(request_id, turn, prompt_ids + token_ids, params, kwargs)
            turn = msgspec.structs.replace(turn, is_resumed=True)
            if output is None:
                continue
            token_ids += output.token_ids
            log_probs += output.log_probs or []
            if output.token_ids:
                spans += spans_of(output)
            hit_tok = output.extra_fields.get("num_cached_tokens")
            refilled_tok += output.extra_fields.get("refilled_tok", 0)
            if cached_tok is None:
                cached_tok = hit_tok
            elif output.token_ids:
                refilled_tok += len(prompt_ids) + len(token_ids) - len(output.token_ids) - (hit_tok or 0)
            preempted += max(0, output.num_preempted or 0)
            stop_reason = output.stop_reason
            waited_s = output.extra_fields.get("queue_s")
            queue_s = None if queue_s is None or waited_s is None else queue_s + waited_s
            if len(token_ids) >= limit_tok or stop_reason not in ("aborted", "abort"):
                break
            if not trajectory.is_evaluation:
                await self._load_balancer.turn_lost.remote(trajectory.key)
        window_tok = self.config.actor_rollout_ref.rollout.max_model_len or len(prompt_ids) + limit_tok
        is_full = len(token_ids) >= min(limit_tok, window_tok - len(prompt_ids))
        trajectory.was_cut = is_full and token_ids[-1:] != [self.end_id]
        trajectory.spans += spans
        trajectory.turn_ids = token_ids
        trajectory.refilled_tok += refilled_tok
        trajectory.turn_ended_s = time.monotonic()
        trajectory.context_tok, trajectory.tool = len(prompt_ids) + len(token_ids), None
        if not trajectory.is_evaluation:
            done = TurnDone(trajectory.key, tuple(spans), cached_tok or 0, preempted, refilled_tok, queue_s)
            await self._load_balancer.turn_done.remote(done)
        versions: list[int | None] = [span.version for span in trajectory.spans] or [None]
        extra = {"global_steps": versions[-1], "min_global_steps": versions[0], "max_global_steps": versions[-1]}
        return TokenOutput(
            token_ids=token_ids, log_probs=log_probs, stop_reason=stop_reason, num_preempted=preempted,
            extra_fields={**extra, "num_cached_tokens": cached_tok},
        )  # fmt: skip

    async def _one(
        self, request_id: str, turn: Turn, prompt_ids: list[int], params: dict[str, Any], kwargs: dict[str, Any]
    ) -> TokenOutput | None:
        """One try; None when the engine was lost."""
        trajectory = CURRENT.get()
        asked = dict(kwargs) | {"turn": None if trajectory.is_evaluation else turn}
        server_id, server = await self._acquire_server(request_id, is_evaluation=trajectory.is_evaluation, **asked)
        try:
            return await server.generate.remote(
                request_id=self._vllm_request_id(request_id), prompt_ids=prompt_ids, sampling_params=params, **kwargs
            )
        except (RayActorError, RayTaskError) as error:
            if not is_lost(error):
                raise
            await self._load_balancer.server_lost.remote(server_id)
            return None
        finally:
            self._release_server(server_id, request_id=request_id)


async def is_unanswered(agent_name: str, token_ids: list[int], tool_format: str, tokenizer: Any) -> bool:
    """Whether a stock agent loop's last turn called a tool: its limits ended the trajectory before an answer."""
    if agent_name != TOOL_LOOP:
        return False
    _, calls = await ToolParser.get_tool_parser(tool_format, tokenizer).extract_tool_calls(token_ids)
    return bool(calls)


def spans_of(output: TokenOutput) -> list[VersionSpan]:
    """Versions of an output's tokens, in order; servers that hold requests say them, others have one a request."""
    one = [(output.extra_fields.get("global_steps") or 0, len(output.token_ids))]
    return [VersionSpan(int(version), tokens) for version, tokens in output.extra_fields.get("version_spans") or one]


def is_lost(error: Exception) -> bool:
    """Whether an engine's error means that the engine is gone, rather than that it refuses the request."""
    return isinstance(error, RayActorError) or "EngineDeadError" in type(error).__name__ + str(error)


class LibraAgentLoopWorker(_Worker):
    def __init__(self, config: Any, llm_client: LLMServerClient, *args: Any, **kwargs: Any) -> None:
        client = LibraClient(config=config, load_balancer_handle=llm_client._load_balancer)
        super().__init__(config, client, *args, **kwargs)
        client.end_id = self.tokenizer.eos_token_id

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, trace: bool = True,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        opened = _opened(trajectory["validate"], kwargs)
        opened.agent_name = agent_name
        CURRENT.set(opened)  # each trajectory runs in a task, and so in a context, of its own
        try:
            return await super()._run_agent_loop(
                sampling_params, trajectory, agent_name=agent_name, trace=trace, **kwargs
            )
        except BaseException as error:
            if isinstance(error, Exception):
                await self.llm_client._load_balancer.failed.remote(f"{type(error).__name__}: {error}")
            await self._tell_end(Ended(opened.key, "aborted"))
            raise

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
        """The end is told before the group can count as finished, so the trainer never trains what nobody knows."""
        result = await super()._agent_loop_postprocess(output, validate, **kwargs)
        last = output[-1] if isinstance(output, list) else output
        current, tool_format = CURRENT.get(), self.rollout_config.multi_turn.format
        if await is_unanswered(current.agent_name, current.turn_ids, tool_format, self.tokenizer):
            current.was_cut = True
        await self._tell_end(Ended(current.key, current.ending, last.reward_score))
        return result

    async def _tell_end(self, end: Ended) -> None:
        if not CURRENT.get().is_evaluation:
            await self.llm_client._load_balancer.ended.remote(end)


def _opened(is_evaluation: bool, row: dict[str, Any]) -> Trajectory:
    uid, sample = str(row["uid"]), int(row["session_id"])
    extra = row.get("extra_info") or {}
    names = (extra.get("task_id"), extra.get("index"), row.get("index"), uid)
    prompt_id = str(next(name for name in names if name is not None))  # 0 is an index
    step = int(row["global_steps"]) - 1
    return Trajectory(f"{uid}_{sample}", prompt_id, uid, sample, step, is_evaluation)


class LibraAgentLoopManager(AgentLoopManagerTQ):
    """`actor_rollout_ref.rollout.agent.agent_loop_manager_class`."""

    async def _init_agent_loop_workers(self) -> None:
        self.agent_loop_workers_class = ray.remote(LibraAgentLoopWorker)
        await super()._init_agent_loop_workers()
