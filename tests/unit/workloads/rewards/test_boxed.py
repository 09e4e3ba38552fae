"""The last box with its braces counted, and what is plain."""

from __future__ import annotations

import pytest

from libra.workloads.rewards.boxed import is_plain, last_boxed, last_boxed_of


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"so \boxed{7}.", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\frac{1}{\sqrt{2}}} and more }", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed {5}", "5"),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{}", ""),
        (r"\boxed{\boxed{5}}", "5"),
        ("no box", None),
        ("boxed{5}", None),
        (r"\boxed", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{1} then \boxed{2", None),
        ("\\boxed{1\\", None),
    ],
)
def test_last_boxed(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("completions", "content"),
    [
        ([], None),
        ([r"\boxed{1}", "<python>print(2)</python>"], "1"),
        ([r"\boxed{1}", r"\boxed{2}"], "2"),
        ([r"\boxed{1}", r"\boxed{"], None),
        ([r"\boxed{", "1}"], None),
    ],
)
def test_a_box_never_spans_two_completions(completions: list[str], content: str | None) -> None:
    assert last_boxed_of(completions) == content


@pytest.mark.parametrize("answer", ["12", "-3", "0.5", "7/6", "-7/6", r"\frac{7}{6}", r"-\dfrac{1}{6}", r"\{1, 2/3\}",
                                    "[3, 5]", "(1,2]", " 12 "])  # fmt: skip
def test_plain(answer: str) -> None:
    assert is_plain(answer)


@pytest.mark.parametrize("answer", ["37*4+18", "1/2+2/3", r"7^5 \bmod 11", r"\{1\} \cup \{2\}", r"[1,5] \cap [3,9]",
                                    "2^{3}", "x", "", "1, 2", r"\{\}", "5!", "1 2"])  # fmt: skip
def test_what_is_left_to_compute_is_not_plain(answer: str) -> None:
    assert not is_plain(answer)
