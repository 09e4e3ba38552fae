"""The noisy expert of the maths workload: computes with the tool, or trusts its head, a slip or an operand."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from libra.core.rng import stream
from libra.workloads.environments.base import Demonstration, Segment
from libra.workloads.environments.math_problems import Attempt, Problem, problems


def demonstrate(seed: int, right_share: float, has_tool: bool, held_out: Collection[str]) -> Iterator[Demonstration]:
    """New problems for ever, none whose question is in `held_out`.

    `right_share` of them are answered rightly: with the tool by running the right program, else from the head. The rest
    divides evenly among the mistakes.
    """
    rng = stream("dapo-math", "demonstrations", seed)
    for problem in problems(rng):
        if problem.question in held_out:
            continue
        is_right = bool(rng.random() < right_share)
        mistakes = _mistakes(problem, has_tool)
        wrong = mistakes[rng.integers(len(mistakes))]
        segments = _right(problem, has_tool) if is_right else wrong
        yield Demonstration(problem.question, segments, is_right)


def _right(problem: Problem, has_tool: bool) -> tuple[Segment, ...]:
    return _run(problem.right) if has_tool else (_box(problem.right.boxed),)


def _mistakes(problem: Problem, has_tool: bool) -> tuple[tuple[Segment, ...], ...]:
    from_the_head = ((_box(problem.guess),), (_box(problem.operand),))
    return (*from_the_head, _run(problem.slip)) if has_tool else from_the_head


def _run(attempt: Attempt) -> tuple[Segment, ...]:
    """The program, what the tool returns, and its copy in the box."""
    return (
        Segment(f"<python>{attempt.code}</python>", by_policy=True),
        Segment(f"<output>{attempt.output}</output>", by_policy=False),
        _box(attempt.boxed),
    )


def _box(text: str) -> Segment:
    return Segment(f"\\boxed{{{text}}}", by_policy=True)
