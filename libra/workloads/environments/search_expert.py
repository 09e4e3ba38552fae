"""The noisy expert of Search-R1: shows the right way, and the mistakes that people and models make on the way.

A policy that imitates it is right now and then, for reasons that it controls: whether it searches, what for, and which
passage it believes. That is what reinforcement learning then improves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from libra.core.rng import stream
from libra.workloads.environments.base import Demonstration, Segment
from libra.workloads.environments.search_text import information
from libra.workloads.environments.search_world import RELATIONS, Question, World
from libra.workloads.rewards.exact_match import exact_match
from libra.workloads.tools.bm25 import Bm25Index
from libra.workloads.tools.corpus import Passage


@dataclass
class _Transcript:
    """What has been written and returned so far."""

    index: Bm25Index
    top_k: int
    segments: list[Segment] = field(default_factory=list)
    answered: str = ""

    def search(self, relation: str, name: str) -> list[Passage]:
        """Key words only: BM25 needs no grammar."""
        query = f"{relation} {name}"
        passages = self.index.search(query, self.top_k)
        self.segments.append(Segment(f"<search>{query}</search>", by_policy=True))
        self.segments.append(Segment(information(passages), by_policy=False))
        return passages

    def answer(self, name: str) -> None:
        self.answered = name
        self.segments.append(Segment(f"<answer>{name}</answer>", by_policy=True))


class SearchExpert:
    """`right_share` of its trajectories do what they should; the rest divides evenly among the mistakes."""

    def __init__(self, world: World, index: Bm25Index, top_k: int, right_share: float) -> None:
        self._world, self._index, self._top_k, self._right_share = world, index, top_k, right_share

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Questions of the training split with replacement. A guess may be right by luck: `is_right` is the reward."""
        rng = stream("search-r1", "demonstrations", seed)
        while True:
            question = self._world.train[rng.integers(len(self._world.train))]
            script = _Transcript(self._index, self._top_k)
            mistakes = _MISTAKES if len(question.relations) == 1 else _MISTAKES_OF_TWO_HOPS
            wrong = mistakes[rng.integers(len(mistakes))]
            act = _do_right if rng.random() < self._right_share else wrong
            act(self._world, question, script, rng)
            is_right = exact_match(script.answered, [self._world.answer(question)])
            yield Demonstration(question.text, tuple(script.segments), is_right)


Behaviour = Callable[[World, Question, _Transcript, np.random.Generator], None]


def object_of(passage: Passage) -> str:
    """The last name of a passage."""
    return passage.text.rstrip(".").rpartition(" ")[2]


def _do_right(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """A search a hop, the best passage believed."""
    name = question.subject
    for relation in question.relations:
        name = object_of(script.search(relation.name, name)[0])
    script.answer(name)


def _guess(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """No search at all."""
    script.answer(str(rng.choice(world.names[question.relations[-1].object])))


def _ask_another_relation(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """A search about the right thing for the wrong property, and its answer taken."""
    others = sorted({each.name for each in RELATIONS} - {each.name for each in question.relations})
    script.answer(object_of(script.search(str(rng.choice(others)), question.subject)[0]))


def _believe_the_wrong_passage(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """The right searches, but what is copied in the end stands in the last passage."""
    name = question.subject
    for relation in question.relations[:-1]:
        name = object_of(script.search(relation.name, name)[0])
    script.answer(object_of(script.search(question.relations[-1].name, name)[-1]))


def _stop_early(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """The first hop's object is taken for the answer."""
    script.answer(object_of(script.search(question.relations[0].name, question.subject)[0]))


def _skip_the_first_hop(world: World, question: Question, script: _Transcript, rng: np.random.Generator) -> None:
    """The second relation is asked of the subject."""
    script.answer(object_of(script.search(question.relations[-1].name, question.subject)[0]))


_MISTAKES: tuple[Behaviour, ...] = (
    _guess,
    _ask_another_relation,
    _believe_the_wrong_passage,
)
_MISTAKES_OF_TWO_HOPS: tuple[Behaviour, ...] = (
    *_MISTAKES,
    _stop_early,
    _skip_the_first_hop,
)
