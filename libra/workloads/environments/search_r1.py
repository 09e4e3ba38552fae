"""Search-R1 (Jin et al., 2025): questions answered with a search tool; the reward is exact match of the last answer.

The policy writes `<search>query</search>`, gets `<information>passages</information>`, and ends with
`<answer>text</answer>`. A turn that does neither is told so. Without `data` the corpus and the questions are generated
(`search_world`); with it they come from `libra data prepare search-r1` (`data_folder`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from libra.core.errors import ConfigError
from libra.workloads.environments.base import (
    Demonstration,
    EnvironmentContext,
    Observation,
    Split,
    Task,
)
from libra.workloads.environments.data_folder import CORPUS, DataFolder, QuestionRow
from libra.workloads.environments.search_expert import SearchExpert
from libra.workloads.environments.search_text import information
from libra.workloads.environments.search_world import World, generate_world
from libra.workloads.environments.tags import last_call
from libra.workloads.rewards.exact_match import exact_match
from libra.workloads.tools.bm25 import Bm25Index
from libra.workloads.tools.corpus import write_corpus
from libra.workloads.tools.search import SearchClient
from libra.workloads.tools.search_process import START_S, running_server

NAME = "search-r1"
STOP = ("</search>", "</answer>")
MAX_TURNS = 4

RIGHT_SHARE = 0.45
"""Of demonstrations. Imitation loses some of it, which leaves a reward well above nothing and far below all."""

INSTRUCTIONS = (
    "Answer the question. Think first, then search with <search>query</search>; what is found stands between "
    "<information> and </information>. Search as often as needed, then answer in a few words with "
    "<answer>text</answer>.\nQuestion: "
)
"""For models that were pre-trained; the tiny one learns the form from demonstrations and gets the question alone."""


@dataclass(frozen=True)
class Sizes:
    """Passages a search, and tokens a turn."""

    top_k: int
    max_turn_tok: int


GENERATED = Sizes(top_k=2, max_turn_tok=32)
PREPARED = Sizes(top_k=3, max_turn_tok=1_024)
"""Search-R1's passages a search; tokens a turn as in the authors' released configuration."""


@dataclass
class SearchEpisode:
    """Keeps the policy's own text apart from what tools return: the reward reads only the former."""

    task: Task
    client: SearchClient
    is_cut: bool = False
    _completions: list[str] = field(default_factory=list)

    async def step(self, completion: str) -> Observation | None:
        self._completions.append(completion)
        call = last_call(completion, ("search", "answer"))
        if call and call.name == "answer":
            return None
        if len(self._completions) >= MAX_TURNS:
            self.is_cut = True
            return None
        start_s = time.monotonic()
        if call is None or not call.content:
            reason = "error: empty query" if call else "error: neither search nor answer"
            return Observation("search", information((), reason), "error", time.monotonic() - start_s)
        found = await self.client.search(call.content)
        return Observation("search", information(found.passages, found.reason), found.status, found.latency_s)

    async def reward(self) -> float:
        for completion in reversed(self._completions):
            call = last_call(completion, ("answer",))
            if call:
                return float(exact_match(call.content, self.task.truth["answers"]))
        return 0.0

    async def close(self) -> None:
        """Nothing is held between turns."""


class SearchR1:
    """Needs `context.search_url` for episodes only (see `serving`); tasks and demonstrations need no server."""

    name = NAME
    stop = STOP
    max_turns = MAX_TURNS

    def __init__(self, context: EnvironmentContext, right_share: float = RIGHT_SHARE) -> None:
        self._context, self._right_share = context, right_share
        self._folder = None if context.data is None else DataFolder.open(context.data, NAME)
        self._sizes = PREPARED if self._folder else GENERATED
        self.max_turn_tok = self._sizes.max_turn_tok
        self._tasks: dict[Split, tuple[Task, ...]] = {}

    @cached_property
    def world(self) -> World:
        """Generated on first use; meaningless with `data`."""
        return generate_world(self._context.seed)

    def tasks(self, split: Split) -> Sequence[Task]:
        if split not in self._tasks:
            self._tasks[split] = self._read(split) if self._folder else self.world.tasks(split)
        return self._tasks[split]

    def start(self, task: Task) -> SearchEpisode:
        if not self._context.search_url:
            raise ConfigError(
                "no search server to ask",
                where=f"{NAME}: search_url",
                mend="run episodes inside `libra.workloads.environments.search_r1.serving(context)`, or name a server",
            )
        return SearchEpisode(task, SearchClient(self._context.search_url, self._sizes.top_k))

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Searches an index of its own, which returns what a server on the same corpus returns."""
        if self._folder:
            raise ConfigError(
                "prepared data have no demonstrations",
                where=f"{NAME}: data",
                mend="start from a pre-trained model, or leave `data` out for generated tasks",
            )
        index = Bm25Index(self.world.passages())
        return SearchExpert(self.world, index, self._sizes.top_k, self._right_share).demonstrations(seed)

    def corpus(self) -> Path:
        """The file to serve; a generated one is written into `context.work`."""
        if self._folder:
            return self._folder.path / CORPUS
        path = self._context.work / CORPUS
        write_corpus(path, self.world.passages())
        return path

    def _read(self, split: Split) -> tuple[Task, ...]:
        assert self._folder is not None
        rows = self._folder.rows(split, QuestionRow)
        return tuple(Task(row.id, INSTRUCTIONS + row.question, {"answers": row.answers}) for row in rows)


@contextmanager
def serving(context: EnvironmentContext, start_s: float = START_S) -> Iterator[EnvironmentContext]:
    """Runs a search server on the environment's own corpus; yields the context with its address."""
    with running_server(SearchR1(context).corpus(), start_s) as url:
        yield replace(context, search_url=url)
