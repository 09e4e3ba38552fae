"""The small functions that repositories are made of, and the ways in which one line of them goes wrong.

A comment in each says what it should do, with its constant: the bug can be found by reading. `{k}` is the constant,
`{o}` another one, `{f}` the function's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Takes = Literal["x", "a, b", "n", "xs", "s"]


@dataclass(frozen=True)
class Bug:
    """`line` counts from 0 in the body; `text` stands there instead of the right one."""

    family: str
    line: int
    text: str


@dataclass(frozen=True)
class Shape:
    """A function: `names` that it may have, its parameters, what the comment says, its body and its bugs."""

    key: str
    names: tuple[str, ...]
    takes: Takes
    says: str
    body: tuple[str, ...]
    bugs: tuple[Bug, ...]

    def source(self, name: str, body: tuple[str, ...], k: int, o: int) -> str:
        """The module's text: a line for `def`, one for the comment, then the body."""
        lines = [f"def {name}({self.takes}):", f"    # {self.says}", *("    " + line for line in body)]
        return "\n".join(filled(line, k, o) for line in lines) + "\n"


BODY_LINE = 3
"""Line number, counted from 1, of a body's first line."""


def filled(text: str, k: int, o: int) -> str:
    return text.replace("{k}", str(k)).replace("{o}", str(o))


def arguments(takes: Takes, k: int) -> list[list[Any]]:
    """Inputs on which bugs show: about the constant, at both ends, and small."""
    if takes == "x":
        return [[x] for x in (k, k - 1, k + 1, 0, -k, 2 * k, 3 * k + 1, 1)]
    if takes == "a, b":
        return [[5, 3], [3, 5], [0, k], [k, 0], [-2, 7], [k, 1], [4, 4]]
    if takes == "n":
        return [[n] for n in (3, 1, 0, 5, 2)]
    if takes == "s":
        return [["ab"], [""], ["x"], ["abcdefghijklmnopqrstuvwxyz"], ["no no"]]
    lists: tuple[list[int], ...] = (
        [1, 2],
        [],
        [k],
        [k - 1, k, k + 1],
        list(range(25)),
        [-3, 2 * k, 4],
        [3, 1, 2],
        [k + 1, k + 2],
    )
    return [[values] for values in lists]


SHAPES: tuple[Shape, ...] = (
    Shape("plus", ("add", "bump"), "x", "x plus {k}", ("return x + {k}",), (
        Bug("operator", 0, "return x - {k}"), Bug("constant", 0, "return x + {o}"), Bug("return", 0, "x + {k}"),
    )),
    Shape("minus", ("cut", "lower"), "x", "x minus {k}", ("return x - {k}",), (
        Bug("operator", 0, "return x + {k}"), Bug("variable", 0, "return {k} - x"),
        Bug("constant", 0, "return x - {o}"),
    )),
    Shape("times", ("scale", "grow"), "x", "{k} times x", ("return {k} * x",), (
        Bug("operator", 0, "return {k} + x"), Bug("constant", 0, "return {o} * x"), Bug("return", 0, "{k} * x"),
    )),
    Shape("most", ("cap", "limit"), "x", "at most {k}", ("if x > {k}:", "    return {k}", "return x"), (
        Bug("comparison", 0, "if x < {k}:"), Bug("constant", 1, "    return {o}"),
        Bug("variable", 1, "    return x"), Bug("variable", 2, "return {k}"),
    )),
    Shape("least", ("floor", "lift"), "x", "at least {k}", ("if x < {k}:", "    return {k}", "return x"), (
        Bug("comparison", 0, "if x > {k}:"), Bug("constant", 1, "    return {o}"),
        Bug("variable", 1, "    return x"), Bug("variable", 2, "return {k}"),
    )),
    Shape("multiple", ("fits", "divides"), "x", "is x a multiple of {k}", ("return x % {k} == 0",), (
        Bug("comparison", 0, "return x % {k} != 0"), Bug("operator", 0, "return x // {k} == 0"),
        Bug("constant", 0, "return x % {o} == 0"),
    )),
    Shape("difference", ("gap", "step"), "a, b", "a minus b plus {k}", ("c = a - b", "return c + {k}"), (
        Bug("operator", 0, "c = a + b"), Bug("variable", 0, "c = b - a"), Bug("constant", 1, "return c + {o}"),
        Bug("variable", 1, "return a + {k}"),
    )),
    Shape("weighted", ("mix", "blend"), "a, b", "a plus {k} times b", ("c = {k} * b", "return a + c"), (
        Bug("variable", 0, "c = {k} * a"), Bug("constant", 0, "c = {o} * b"), Bug("operator", 1, "return a - c"),
        Bug("return", 1, "a + c"),
    )),
    Shape("series", ("series", "ramp"), "n", "sum of 1 to n, times {k}", (
        "t = 0", "for i in range(n + 1):", "    t += i", "return {k} * t",
    ), (
        Bug("off by one", 1, "for i in range(n):"), Bug("operator", 2, "    t -= i"),
        Bug("constant", 3, "return {o} * t"), Bug("variable", 3, "return {k} * n"),
    )),
    Shape("total", ("total", "pile"), "xs", "sum of xs plus {k}", (
        "t = {k}", "for x in xs:", "    t += x", "return t",
    ), (
        Bug("constant", 0, "t = {o}"), Bug("operator", 2, "    t -= x"), Bug("variable", 2, "    t += t"),
        Bug("return", 3, "t"),
    )),
    Shape("count", ("count", "tally"), "xs", "how many of xs are over {k}", (
        "n = 0", "for x in xs:", "    if x > {k}:", "        n += 1", "return n",
    ), (
        Bug("off by one", 0, "n = 1"), Bug("comparison", 2, "    if x < {k}:"), Bug("constant", 2, "    if x > {o}:"),
        Bug("variable", 3, "        n += x"), Bug("return", 4, "n"),
    )),
    Shape("best", ("best", "peak"), "xs", "largest of xs, at least {k}", (
        "m = {k}", "for x in xs:", "    if x > m:", "        m = x", "return m",
    ), (
        Bug("constant", 0, "m = {o}"), Bug("comparison", 2, "    if x < m:"), Bug("variable", 3, "        x = m"),
        Bug("variable", 4, "return x"),
    )),
    Shape("first", ("head", "first"), "s", "first {k} of s", ("return s[:{k}]",), (
        Bug("off by one", 0, "return s[1:{k}]"), Bug("operator", 0, "return s[{k}:]"),
        Bug("constant", 0, "return s[:{o}]"),
    )),
    Shape("rest", ("rest", "tail"), "s", "all of s but the first {k}", ("return s[{k}:]",), (
        Bug("operator", 0, "return s[:{k}]"), Bug("variable", 0, "return s[-{k}:]"),
        Bug("constant", 0, "return s[{o}:]"),
    )),
)  # fmt: skip
