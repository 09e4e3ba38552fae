"""What a turn calls."""

from __future__ import annotations

import pytest

from libra.workloads.environments.tags import Call, last_call


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("<search>a b</search>", Call("search", "a b")),
        ("think <search> a </search>", Call("search", "a")),
        ("<search>a</search><answer>b</answer>", Call("answer", "b")),
        ("<answer>b</answer><search>a</search>", Call("search", "a")),
        ("<answer>a</answer><answer>b</answer>", Call("answer", "b")),
        ("<search>a<search>b</search>", Call("search", "b")),
        ("<search></search>", Call("search", "")),
        ("<answer>a</answer> trailing", Call("answer", "a")),
        ("<answer>a<b>c</b></answer>", Call("answer", "a<b>c</b>")),
        ("<answer>two\nlines</answer>", Call("answer", "two\nlines")),
        ("", None),
        ("<search>a", None),
        ("a</search>", None),
        ("</search><search>", None),
        ("<search>a</answer>", None),
        ("<other>a</other>", None),
    ],
)
def test_last_call(text: str, call: Call | None) -> None:
    assert last_call(text, ("search", "answer")) == call
