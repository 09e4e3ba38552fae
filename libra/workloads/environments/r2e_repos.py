"""Small Python repositories with a bug each, made from a seed: what R2E-Gym's tasks are when no data is given.

Which function goes with which constant decides the split, the same for all seeds: what is held out in one run is in
nobody's warm-up, and no training task shows such a pair in a wrong line either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from libra.core.rng import seed_of, stream
from libra.workloads.environments.base import Split, Task
from libra.workloads.environments.r2e_shapes import BODY_LINE, SHAPES, Bug, Shape, arguments, filled

CONSTANTS = range(2, 22)
HELD_OUT_ONE_IN = 5
FILES = ("calc.py", "util.py", "tools.py", "shop.py", "core.py", "base.py")
NUM_TRAIN, NUM_HELD_OUT = 640, 128
"""80 steps of 8 prompts see each training task once; 128 held out: a standard error of 4.4 % at one half."""
TEST_FILE = "test.py"


@dataclass(frozen=True)
class Repo:
    """One function with one bug. `other` is the constant of the bugs that get it wrong."""

    shape: Shape
    bug: Bug
    k: int
    other: int
    name: str
    file: str

    @property
    def id(self) -> str:
        module, bug = self.file.removesuffix(".py"), self.shape.bugs.index(self.bug)
        return f"{self.shape.key}-{self.k}-{self.name}-{module}-{bug}"

    @property
    def prompt(self) -> str:
        return f"Fix {self.name} in {self.file}\n"

    def source(self, bug: Bug | None) -> str:
        """The module, with a bug or right."""
        body = self.shape.body if bug is None else self._with(bug)
        return self.shape.source(self.name, body, self.k, self.other)

    def line(self, bug: Bug) -> int:
        """Line number in the file."""
        return BODY_LINE + bug.line

    def right_line(self, bug: Bug) -> str:
        """What should stand where a bug is, without indentation."""
        return filled(self.shape.body[bug.line], self.k, self.other).strip()

    def wrong_line(self, bug: Bug) -> str:
        return filled(bug.text, self.k, self.other).strip()

    def hidden(self) -> tuple[tuple[list[Any], Any], ...]:
        """(arguments, right value) pairs."""
        return _hidden(self.shape, self.k)

    def visible(self) -> tuple[list[Any], Any]:
        """The first of them that the bug fails."""
        return _visible(self.shape, self.bug, self.k, self.other)

    def test_source(self) -> str:
        """The failing test, to be run as a program: a test framework takes longer to start than an episode's turn."""
        values, right = self.visible()
        call = call_text(self.name, values)
        return (
            f"try:\n    from {self.file.removesuffix('.py')} import {self.name}\n    got = {call}\n"
            f"except Exception as error:\n    got = type(error).__name__\n"
            f'print("ok" if got == {right!r} else f"{call} is {{got!r}}, not {right!r}")\n'
            f"raise SystemExit(got != {right!r})\n"
        )

    def task(self) -> Task:
        module = self.file.removesuffix(".py")
        hidden = [
            {"module": module, "function": self.name, "arguments": values, "expected": right}
            for values, right in self.hidden()
        ]
        files = {self.file: self.source(self.bug), TEST_FILE: self.test_source()}
        return Task(self.id, self.prompt, {"files": files, "sources": [self.file], "hidden": hidden})

    def _with(self, bug: Bug) -> tuple[str, ...]:
        body = self.shape.body
        return (*body[: bug.line], bug.text, *body[bug.line + 1 :])


def is_held_out(shape: Shape, k: int) -> bool:
    return seed_of("r2e-gym", "held out", shape.key, k) % HELD_OUT_ONE_IN == 0


def repos(split: Split, *name: object) -> Iterator[Repo]:
    """Endless draws from one side of the split; `name` names the stream."""
    pairs = [(shape, k) for shape in SHAPES for k in _constants(shape, split == "held_out")]
    chance = stream("r2e-gym", "repos", split, *name)
    while True:
        shape, k = _pick(chance, pairs)
        side = _constants(shape, split == "held_out")
        other = side[(side.index(k) + 1) % len(side)]
        yield Repo(shape, _pick(chance, shape.bugs), k, other, _pick(chance, shape.names), _pick(chance, FILES))


def tasks(split: Split, seed: int) -> tuple[Task, ...]:
    """`NUM_TRAIN` or `NUM_HELD_OUT` different tasks."""
    wanted = NUM_TRAIN if split == "train" else NUM_HELD_OUT
    found: dict[str, Repo] = {}
    for repo in repos(split, "tasks", seed):
        found.setdefault(repo.id, repo)
        if len(found) == wanted:
            break
    return tuple(repo.task() for repo in found.values())


def call_text(name: str, values: list[Any]) -> str:
    return f"{name}({', '.join(map(repr, values))})"


def outcome(source: str, name: str, values: list[Any]) -> Any:
    """What a call returns, or the name of the error; for sources that are made of shapes alone, run in this process."""
    space: dict[str, Any] = {}
    try:
        exec(_compiled(source), space)
        return space[name](*values)
    except Exception as error:
        return type(error).__name__


def is_same(got: object, right: object) -> bool:
    """Type included: 1 is not True."""
    return type(got) is type(right) and got == right


@cache
def _constants(shape: Shape, held_out: bool) -> tuple[int, ...]:
    return tuple(k for k in CONSTANTS if is_held_out(shape, k) == held_out)


@cache
def _hidden(shape: Shape, k: int) -> tuple[tuple[list[Any], Any], ...]:
    source = shape.source("f", shape.body, k, k)
    return tuple((values, outcome(source, "f", values)) for values in arguments(shape.takes, k))


@cache
def _visible(shape: Shape, bug: Bug, k: int, other: int) -> tuple[list[Any], Any]:
    source = Repo(shape, bug, k, other, "f", "").source(bug)
    failing = [pair for pair in _hidden(shape, k) if not is_same(outcome(source, "f", pair[0]), pair[1])]
    assert failing, f"no input shows {bug} of {shape.key} {k}"
    return failing[0]


@cache
def _compiled(source: str) -> Any:
    return compile(source, "module", "exec")


def _pick(chance: np.random.Generator, items: Any) -> Any:
    return items[int(chance.integers(len(items)))]
