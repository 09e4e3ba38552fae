"""What happened in a rollout: tool returns, turns and trajectories, as every backend and importer speaks of them."""

from __future__ import annotations

from typing import Literal

import msgspec

ToolStatus = Literal["ok", "error", "timeout", "unknown"]
TrajectoryStatus = Literal["completed", "truncated", "aborted"]

TOOL_STATUSES: tuple[ToolStatus, ...] = ("ok", "error", "timeout", "unknown")
TRAJECTORY_STATUSES: tuple[TrajectoryStatus, ...] = ("completed", "truncated", "aborted")


class ToolReturn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation. `latency_s` is None where the source has no times; `payload_tok` may be 0."""

    tool: str
    payload_tok: int
    status: ToolStatus = "ok"
    latency_s: float | None = None


class VersionSpan(msgspec.Struct, frozen=True):
    """`num_tok` consecutive generated tokens sampled by policy version `version`."""

    version: int
    num_tok: int


class Turn(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation and the tool return that ended it; the last turn of a trajectory has none.

    `spans` sum to `generated_tok` where the source knows policy versions, else they are empty.
    """

    generated_tok: int
    tool: ToolReturn | None = None
    spans: tuple[VersionSpan, ...] = ()


class Trajectory(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample of a prompt's group.

    `group` numbers the prompt's visit (unique in a workload), `sample` the position in the group. A `truncated`
    (length limit) or `aborted` trajectory has right-censored lengths: what is recorded is a lower bound.
    """

    prompt_id: str
    group: int
    sample: int
    prompt_tok: int
    turns: tuple[Turn, ...]
    reward: float | None = None
    status: TrajectoryStatus = "completed"

    @property
    def generated_tok(self) -> int:
        return sum(turn.generated_tok for turn in self.turns)

    @property
    def observed_tok(self) -> int:
        """Tool tokens that entered the context."""
        return sum(turn.tool.payload_tok for turn in self.turns if turn.tool)

    @property
    def total_tok(self) -> int:
        """Prompt, generated and observed tokens: the sequence that is trained on."""
        return self.prompt_tok + self.generated_tok + self.observed_tok

    @property
    def tool_s(self) -> float:
        """Known tool latency; unknown ones count 0."""
        return sum(turn.tool.latency_s or 0.0 for turn in self.turns if turn.tool)

    @property
    def is_censored(self) -> bool:
        return self.status != "completed"

    @property
    def key(self) -> str:
        """Stable name within a workload: `group/sample`."""
        return f"{self.group}/{self.sample}"
