"""What an environment is: tasks, and an episode for each trajectory that answers the policy's text with tool returns.

The backend owns tokens, engines and time; an environment sees text only. Whatever it answers is appended to the
context as it is and never trained on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from libra.core.records import ToolStatus
from libra.workloads.tools.sandbox import Sandbox

Split = Literal["train", "held_out"]


class Task(msgspec.Struct, frozen=True):
    """One prompt. `truth` is what judges (answers, hidden tests); neither the policy nor a tool ever sees it."""

    id: str
    prompt: str
    truth: dict[str, Any] = {}


class Observation(msgspec.Struct, frozen=True):
    """One tool return. `text` is all that enters the context, tags included."""

    tool: str
    text: str
    status: ToolStatus
    latency_s: float


class Segment(msgspec.Struct, frozen=True):
    """A piece of a demonstration: written by the policy (trained on), or returned by a tool."""

    text: str
    by_policy: bool


class Demonstration(msgspec.Struct, frozen=True):
    """A trajectory for the warm-up by supervised fine-tuning; `is_right` says whether it earns the reward."""

    prompt: str
    segments: tuple[Segment, ...]
    is_right: bool


class Episode(Protocol):
    """One trajectory's state. Used by one coroutine; tools run without blocking the event loop.

    `is_cut`, once it is over: for want of turns, so that its last call got no answer.
    """

    is_cut: bool

    async def step(self, completion: str) -> Observation | None:
        """Answer a turn's text (its closing tag included); None: the trajectory is over.

        A turn that calls no tool rightly is answered with an error observation or ends the trajectory, as the
        environment says; a tool that fails is an observation, never an exception.
        """
        ...

    async def reward(self) -> float:
        """In [0, 1], from the policy's own text (and what it did to its folder) alone."""
        ...

    async def close(self) -> None:
        """Give back folders and processes; safe to call twice and at any time."""
        ...


class Environment(Protocol):
    """A source of tasks. `stop` are the closing tags that end a turn; they stay in the text."""

    name: str
    stop: tuple[str, ...]
    max_turns: int
    max_turn_tok: int

    def tasks(self, split: Split) -> Sequence[Task]:
        """Equal on every call. No task of one split is in the other."""
        ...

    def start(self, task: Task) -> Episode: ...

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Endless, deterministic; tasks drawn from the training split's generator, none of them held out."""
        ...


@dataclass(frozen=True)
class EnvironmentContext:
    """What an environment is built from. `data` is a folder of `libra data prepare`; None: generated tasks.

    `work` is an empty folder for episodes' files; `search_url` the address of a running search server.
    """

    work: Path
    sandbox: Sandbox | None = None
    search_url: str = ""
    data: Path | None = None
    seed: int = 0
