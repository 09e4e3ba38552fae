"""A noisy expert who mends repositories: what a policy is warmed up on before it learns from rewards.

It does what a good engineer does (look, change the one line, perhaps run the test, say that it is done) mixed with
the usual mistakes, so that a policy which copies it has something to learn. What its tools would answer is worked out
here, in microseconds, and equals what they do answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from libra.core.rng import stream
from libra.workloads.environments.base import Demonstration, Segment
from libra.workloads.environments.r2e_repos import TEST_FILE, Repo, call_text, is_same, outcome, repos
from libra.workloads.environments.r2e_shapes import BODY_LINE
from libra.workloads.environments.r2e_text import observation_text

SHARE_RIGHT = 0.4
MISTAKES = ("wrong line", "wrong fix", "blind", "gives up", "gives up at once", "wrong file")
MISTAKE_SHARES = (0.15, 0.15, 0.2, 0.2, 0.1, 0.2)
"""Mostly bad habits, which rewards unlearn; what looks like a fix and is none also blurs how to write one."""
SHARE_TESTED = 0.3
"""Of the edits, those after which the expert runs the visible test."""
DONE = "<done></done>"


def demonstrations(seed: int, share_right: float = SHARE_RIGHT) -> Iterator[Demonstration]:
    """Endless; tasks of the training side. `share_right` is met but for mistakes that turn out well by luck."""
    chance = stream("r2e-gym", "expert", seed)
    for repo in repos("train", "demonstrations", seed):
        attempt = _Attempt(repo)
        if chance.random() < share_right:
            _mend(attempt, chance)
        else:
            _fail(attempt, MISTAKES[int(chance.choice(len(MISTAKES), p=MISTAKE_SHARES))], chance)
        yield attempt.finished()


class _Attempt:
    """Segments so far, and the module as it stands after them."""

    def __init__(self, repo: Repo) -> None:
        self.repo = repo
        self.source = repo.source(repo.bug)
        self.segments: list[Segment] = []

    def look(self) -> None:
        lines = enumerate(self.source.splitlines(), 1)
        self._turn(f"<bash>grep -n . {self.repo.file}</bash>", "\n".join(f"{n}:{line}" for n, line in lines))

    def edit(self, line: int, text: str, file: str | None = None) -> None:
        said = "ok" if file is None else "no such file"
        if file is None:
            lines = self.source.splitlines()
            if line <= len(lines):
                old = lines[line - 1]
                lines[line - 1] = old[: len(old) - len(old.lstrip())] + text
                self.source = "\n".join(lines) + "\n"
            else:
                said = f"no line {line}"
        self._turn(f"<edit>{file or self.repo.file}:{line}: {text}</edit>", said)

    def test(self) -> None:
        values, right = self.repo.visible()
        got = outcome(self.source, self.repo.name, values)
        said = "ok" if got == right else f"{call_text(self.repo.name, values)} is {got!r}, not {right!r}"
        self._turn(f"<bash>python {TEST_FILE}</bash>", said)

    def finished(self) -> Demonstration:
        self.segments.append(Segment(DONE, True))
        name, hidden = self.repo.name, self.repo.hidden()
        is_right = all(is_same(outcome(self.source, name, values), right) for values, right in hidden)
        return Demonstration(self.repo.prompt, tuple(self.segments), is_right)

    def _turn(self, call: str, said: str) -> None:
        self.segments += [Segment(call, True), Segment(observation_text(said), False)]


def _mend(attempt: _Attempt, chance: np.random.Generator) -> None:
    repo = attempt.repo
    attempt.look()
    attempt.edit(repo.line(repo.bug), repo.right_line(repo.bug))
    if chance.random() < SHARE_TESTED:
        attempt.test()


def _fail(attempt: _Attempt, mistake: str, chance: np.random.Generator) -> None:
    repo = attempt.repo
    line, right = repo.line(repo.bug), repo.right_line(repo.bug)
    if mistake == "gives up at once":
        return
    if mistake == "blind":
        attempt.edit(BODY_LINE + int(chance.integers(2)), repo.wrong_line(repo.bug))
    else:
        attempt.look()
    if mistake == "wrong line":
        attempt.edit(line + (1 if chance.random() < 0.5 else -1), right)
    elif mistake == "wrong fix":
        bug = repo.shape.bugs[int(chance.integers(len(repo.shape.bugs)))]
        attempt.edit(repo.line(bug), repo.wrong_line(bug))
    elif mistake == "wrong file":
        attempt.edit(line, right, file=repo.name + ".py")
    if mistake != "gives up" and chance.random() < SHARE_TESTED:
        attempt.test()
