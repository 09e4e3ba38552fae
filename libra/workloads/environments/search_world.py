"""The generated world of Search-R1: invented people, firms and towns, a passage a fact, questions of one or two hops.

Names are four letters of two syllables and sentences have one form, so that a model of half a million parameters can
learn to ask and to copy. Facts are drawn, so no answer can be known without a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from libra.core.rng import stream
from libra.workloads.environments.base import Split, Task
from libra.workloads.tools.corpus import Passage

CONSONANTS, VOWELS = "bdgklmnprstvz", "aeiou"

NUM_THINGS = {"person": 900, "firm": 120, "town": 100, "club": 60, "river": 40, "land": 20}
"""About 3,100 passages. People are many, as questions start with them; no guess hits more than one land in twenty."""

HELD_OUT_SHARE = 0.1
"""Of the things that questions are about: who is asked about in one split is never asked about in the other."""


@dataclass(frozen=True)
class Relation:
    """The `name` of a `subject` is an `object`, both kinds of things. No kind is related to itself: "the boss of Kitu"
    would find whom Kitu is the boss of as well."""

    name: str
    subject: str
    object: str


RELATIONS = (
    Relation("firm", "person", "firm"),
    Relation("home", "person", "town"),
    Relation("club", "person", "club"),
    Relation("seat", "firm", "town"),
    Relation("seat", "club", "town"),
    Relation("land", "town", "land"),
    Relation("river", "town", "river"),
)


@dataclass(frozen=True)
class Question:
    """`relations` lead from `subject` to the answer, in the order of the searches."""

    subject: str
    relations: tuple[Relation, ...]

    @property
    def text(self) -> str:
        path = " of ".join(f"the {each.name}" for each in reversed(self.relations))
        return f"What is {path} of {self.subject}?"

    @property
    def id(self) -> str:
        return "-".join((self.subject, *(each.name for each in self.relations)))


@dataclass(frozen=True)
class World:
    """`facts` maps (name of a relation, subject) to the object; `names` lists the things of each kind."""

    facts: dict[tuple[str, str], str]
    names: dict[str, tuple[str, ...]]
    train: tuple[Question, ...]
    held_out: tuple[Question, ...]

    def answer(self, question: Question) -> str:
        found = question.subject
        for relation in question.relations:
            found = self.facts[relation.name, found]
        return found

    def passages(self) -> list[Passage]:
        """One a fact; the id says which."""
        return [
            Passage(f"{relation}-{subject}", f"The {relation} of {subject} is {found}.")
            for (relation, subject), found in self.facts.items()
        ]

    def tasks(self, split: Split) -> tuple[Task, ...]:
        questions = self.train if split == "train" else self.held_out
        return tuple(Task(each.id, each.text, {"answers": [self.answer(each)]}) for each in questions)


def generate_world(seed: int) -> World:
    """Equal for equal seeds, on every machine."""
    rng = stream("search-r1", "world", seed)
    names = _names(rng)
    facts = {
        (relation.name, subject): str(rng.choice(names[relation.object]))
        for relation in RELATIONS
        for subject in names[relation.subject]
    }
    questions = [Question(subject, relations) for relations in _paths() for subject in names[relations[0].subject]]
    held_out = {name for kind in names.values() for name in kind[: round(HELD_OUT_SHARE * len(kind))]}
    order = [questions[index] for index in rng.permutation(len(questions))]
    return World(
        facts,
        names,
        train=tuple(each for each in order if each.subject not in held_out),
        held_out=tuple(each for each in order if each.subject in held_out),
    )


def _names(rng: np.random.Generator) -> dict[str, tuple[str, ...]]:
    """No two things share a name."""
    syllables = ["".join(pair) for pair in product(CONSONANTS, VOWELS)]
    every = ["".join(pair).capitalize() for pair in product(syllables, syllables)]
    drawn = iter(rng.permutation(every).tolist())
    return {kind: tuple(next(drawn) for _ in range(number)) for kind, number in NUM_THINGS.items()}


def _paths() -> Sequence[tuple[Relation, ...]]:
    """One hop each, and two where a person's firm, home or club is the subject of the second."""
    one = [(relation,) for relation in RELATIONS]
    two = [
        (first, second)
        for first in RELATIONS
        for second in RELATIONS
        if first.subject == "person" and first.object == second.subject
    ]
    return one + two
