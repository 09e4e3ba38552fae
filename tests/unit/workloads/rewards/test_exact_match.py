"""SQuAD's normalisation, and answers that must not pass."""

from __future__ import annotations

import pytest

from libra.workloads.rewards.exact_match import exact_match, normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Beatles", "beatles"),
        ("  an  Apple\n a day ", "apple day"),
        ("U.S.A.", "usa"),
        ("rock-'n'-roll", "rocknroll"),
        ("Theatre", "theatre"),
        ("Ötzi!", "ötzi"),
        ("the", ""),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "truths", "is_right"),
    [
        ("the Bano.", ["Bano"], True),
        ("bano", ["Kitu", "Bano"], True),
        ("Bano Kitu", ["Bano"], False),
        ("Ban", ["Bano"], False),
        ("", ["Bano"], False),
        ("Bano", [], False),
        ("the", ["A"], False),  # all articles are nothing once normalised: no reason to take one for another
        ("", ["%"], False),
        (" a ", ["A"], True),
    ],
)
def test_exact_match(answer: str, truths: list[str], is_right: bool) -> None:
    assert exact_match(answer, truths) is is_right
