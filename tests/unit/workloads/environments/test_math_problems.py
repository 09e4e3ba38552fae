"""Generated problems: their programs print what is said, and their mistakes are mistakes."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest

from libra.core.rng import stream
from libra.workloads.environments.math_problems import KINDS, Problem, problems
from libra.workloads.rewards.boxed import is_plain


@pytest.fixture(scope="module")
def some() -> list[Problem]:
    return list(islice(problems(stream("test")), 1_500))


def printed(code: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    return out.getvalue().strip()


def test_they_are_deterministic_and_all_kinds_come_equally_often(some: list[Problem]) -> None:
    assert list(islice(problems(stream("test")), 1_500)) == some
    counts = Counter(problem.kind for problem in some)
    assert len(counts) == len(KINDS) == 5
    assert min(counts.values()) > 1_500 / 5 * 0.8


def test_programs_print_their_outputs(some: list[Problem]) -> None:
    for problem in some:
        for attempt in (problem.right, problem.slip):
            assert printed(attempt.code) == attempt.output


def test_answers_are_those_of_the_question(some: list[Problem]) -> None:
    """From the text of the question alone, by other means than the generator's."""
    for problem in some:
        assert printed(f"print({_python(problem)})") == problem.right.output, problem


def _python(problem: Problem) -> str:
    """The question as an expression."""
    text = problem.question.removeprefix("What is ").removesuffix("?")
    if problem.kind == "intervals":
        (a, b), (c, d) = (part.strip().strip("[]").split(",") for part in text.split("\\cap"))
        both = sorted({*range(int(a), int(b) + 1)} & {*range(int(c), int(d) + 1)})
        return str([both[0], both[-1]])
    if problem.kind == "sets":
        for latex, python in (("\\{", "{"), ("\\}", "}"), ("\\cup", "|"), ("\\cap", "&")):
            text = text.replace(latex, python)
        return f"sorted({text})"
    if problem.kind == "fractions":
        sign = "+" if "+" in text else "-"
        first, second = (Fraction(part) for part in text.split(sign))
        return repr(str(first + second if sign == "+" else first - second))
    return text.replace("^", "**").replace("mod", "%")


def test_mistakes_are_wrong_and_every_box_is_plain(some: list[Problem]) -> None:
    for problem in some:
        right = _value(problem.right.boxed)
        assert _value(problem.answer) == right
        for wrong in (problem.slip.boxed, problem.guess, problem.operand):
            assert _value(wrong) != right, problem
        for text in (problem.answer, problem.right.boxed, problem.slip.boxed, problem.guess, problem.operand):
            assert is_plain(text), text


def _value(text: str) -> object:
    """Of LaTeX as the generator writes it."""
    if text[0] in "[\\" and "frac" not in text:
        return text[0], sorted(int(each) for each in text.strip("[]\\{}").split(","))
    if "frac" in text:
        top, bottom = text.partition("\\frac")[2].strip("{}").split("}{")
        return Fraction(int(top), int(bottom)) * (-1 if text[0] == "-" else 1)
    return Fraction(text)


def test_they_are_short(some: list[Problem]) -> None:
    assert max(len(problem.question) for problem in some) < 60
    assert max(len(problem.right.code) for problem in some) < 80
    assert all("\n" not in problem.question + problem.right.code for problem in some)
