"""Exact match of short answers, normalised as SQuAD's evaluation script does (Rajpurkar et al., 2016)."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case; no punctuation, no articles, single spaces."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, truths: Iterable[str]) -> bool:
    """Whether `answer` is one of `truths`. A truth of articles and signs alone ("A", "%") must be met as it is."""
    found = normalise(answer)
    return any(
        found == wanted if (wanted := normalise(truth)) else answer.strip().lower() == truth.strip().lower()
        for truth in truths
    )
