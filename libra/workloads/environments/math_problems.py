"""Generated problems of one line with known answers, and for each what a careless solver would write instead.

Small numbers: the point is whether a policy computes or guesses, not how large a product it can copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Attempt:
    """A program for the Python tool, what it prints, and what stands in the box after it."""

    code: str
    output: str
    boxed: str


@dataclass(frozen=True)
class Problem:
    """`answer` is LaTeX. `slip` is a program with a mistake in it, `guess` an answer computed in the head and missed,
    `operand` a piece of the question: all three wrong for certain."""

    kind: str
    question: str
    answer: str
    right: Attempt
    slip: Attempt
    guess: str
    operand: str


Draw = Callable[[np.random.Generator], Problem | None]
"""One problem; None where a mistake would happen to be right."""


def problems(rng: np.random.Generator) -> Iterator[Problem]:
    """Endless; all kinds equally often, questions may come again."""
    while True:
        draw, problem = KINDS[rng.integers(len(KINDS))], None
        while problem is None:
            problem = draw(rng)
        yield problem


def arithmetic(rng: np.random.Generator) -> Problem | None:
    """Three operands; the slip forgets the last."""
    a, b, c = (int(each) for each in rng.integers(2, 20, 3))
    form, value, short = (
        (f"{a}*{b}+{c}", a * b + c, (f"{a}*{b}", a * b)),
        (f"{a}*{b}-{c}", a * b - c, (f"{a}*{b}", a * b)),
        (f"{a}+{b}-{c}", a + b - c, (f"{a}+{b}", a + b)),
        (f"({a}+{b})*{c}", (a + b) * c, (f"({a}+{b})", a + b)),
    )[rng.integers(4)]
    guess = value + int(rng.choice([-10, -2, -1, 1, 2, 10]))
    return _integer("arithmetic", form, form, value, short, guess, a)


def modular(rng: np.random.Generator) -> Problem | None:
    """A power modulo a number; the slip multiplies."""
    base, power, modulus = int(rng.integers(2, 13)), int(rng.integers(2, 8)), int(rng.integers(3, 20))
    value = base**power % modulus
    slip = (f"{base}*{power}%{modulus}", base * power % modulus)
    guess = (value + int(rng.integers(1, modulus))) % modulus
    question = f"{base}^{power} mod {modulus}"
    return _integer("modular", question, f"{base}**{power}%{modulus}", value, slip, guess, base)


def fractions(rng: np.random.Generator) -> Problem | None:
    """A sum or difference; the slip takes the other sign, the guess adds numerators and denominators."""
    a, b, c, d = (int(each) for each in rng.integers(1, 10, 4))
    sign = str(rng.choice(["+", "-"]))
    first, second = Fraction(a, b + 1), Fraction(c, d + 1)
    value, other = (first + second, first - second) if sign == "+" else (first - second, first + second)
    guess = Fraction(a + c, b + d + 2)
    if value in (other, guess, first):
        return None

    def attempt(operator: str, found: Fraction) -> Attempt:
        terms = f"F({a},{b + 1}){operator}F({c},{d + 1})"
        return Attempt(f"from fractions import Fraction as F;print({terms})", str(found), str(found))

    return Problem(
        "fractions",
        f"What is {a}/{b + 1}{sign}{c}/{d + 1}?",
        _latex(value),
        right=attempt(sign, value),
        slip=attempt("-" if sign == "+" else "+", other),
        guess=str(guess),
        operand=f"{a}/{b + 1}",
    )


def sets(rng: np.random.Generator) -> Problem | None:
    """A union or intersection; the slip takes the other, the guess loses an element."""
    first, second = (sorted({int(each) for each in rng.integers(1, 10, 3)}) for _ in range(2))
    both = {"cup": sorted({*first, *second}), "cap": sorted({*first} & {*second})}
    name, other = ("cup", "cap") if rng.random() < 0.5 else ("cap", "cup")
    value, wrong = both[name], both[other]
    if not both["cap"] or value in (wrong, first) or len(value) < 2:
        return None
    lost = int(rng.integers(len(value)))

    def attempt(which: str) -> Attempt:
        terms = f"{_braces(first)}{'|' if which == 'cup' else '&'}{_braces(second)}"
        return Attempt(f"print(sorted({terms}))", str(both[which]), _set(both[which]))

    return Problem(
        "sets",
        f"What is \\{_braces(first)[:-1]}\\}} \\{name} \\{_braces(second)[:-1]}\\}}?",
        _set(value),
        right=attempt(name),
        slip=attempt(other),
        guess=_set(value[:lost] + value[lost + 1 :]),
        operand=_set(first),
    )


def intervals(rng: np.random.Generator) -> Problem | None:
    """An intersection of two that overlap; slip and guess widen it to the hull and to one side."""
    ends = sorted({int(each) for each in rng.integers(1, 20, 4)})
    if len(ends) < 4:
        return None
    a, b, c, d = ends
    first, second = ((a, c), (b, d)) if rng.random() < 0.5 else ((b, d), (a, c))

    def attempt(low: str, high: str, found: tuple[int, int]) -> Attempt:
        terms = f"{low}({first[0]},{second[0]}),{high}({first[1]},{second[1]})"
        return Attempt(f"print([{terms}])", _interval(*found), _interval(*found))

    return Problem(
        "intervals",
        f"What is [{first[0]},{first[1]}] \\cap [{second[0]},{second[1]}]?",
        _interval(b, c),
        right=attempt("max", "min", (b, c)),
        slip=attempt("min", "max", (a, d)),
        guess=_interval(b, c + int(rng.integers(1, 3))),
        operand=_interval(*first),
    )


KINDS: tuple[Draw, ...] = (arithmetic, modular, fractions, sets, intervals)


def _integer(
    kind: str, question: str, terms: str, value: int, slip: tuple[str, int], guess: int, operand: int
) -> Problem | None:
    if value in (slip[1], guess, operand):
        return None
    return Problem(
        kind,
        f"What is {question}?",
        str(value),
        right=Attempt(f"print({terms})", str(value), str(value)),
        slip=Attempt(f"print({slip[0]})", str(slip[1]), str(slip[1])),
        guess=str(guess),
        operand=str(operand),
    )


def _latex(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _braces(values: Sequence[int]) -> str:
    return "{" + ",".join(str(each) for each in values) + "}"


def _set(values: Sequence[int]) -> str:
    return "\\{" + ", ".join(str(each) for each in values) + "\\}"


def _interval(low: int, high: int) -> str:
    return f"[{low}, {high}]"
