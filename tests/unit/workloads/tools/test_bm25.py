"""Ranking, ties and queries that find nothing; corpora that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.workloads.tools.bm25 import Bm25Index
from libra.workloads.tools.corpus import Passage, read_corpus, write_corpus

PASSAGES = [
    Passage("0", "The home of Kitu is Bano."),
    Passage("1", "The firm of Kitu is Zela."),
    Passage("2", "The firm of Rado is Zela."),
    Passage("3", "The club of Kitu is Momo."),
    Passage("4", "The land of Bano is Suri."),
]


@pytest.fixture(scope="module")
def index() -> Bm25Index:
    pytest.importorskip("bm25s", reason="passages are found by bm25s")
    return Bm25Index(PASSAGES)


@pytest.mark.parametrize(
    ("query", "top_k", "found"),
    [
        ("firm Kitu", 2, ["1", "2"]),  # "firm" is rarer than "Kitu"
        ("What is the firm of Rado?", 1, ["2"]),
        ("KITU", 3, ["0", "1", "3"]),  # equally good: as in the corpus
        ("kitu", 1, ["0"]),
        ("bano", 100, ["0", "4"]),
        ("the of is", 3, []),
        ("nobody", 3, []),
        ("", 3, []),
        ("?!", 3, []),
        ("nobody firm", 1, ["1"]),
    ],
)
def test_search(index: Bm25Index, query: str, top_k: int, found: list[str]) -> None:
    assert [passage.id for passage in index.search(query, top_k)] == found


@pytest.mark.parametrize("texts", [[""], ["the of", " "]])
def test_a_corpus_without_words_is_refused(texts: list[str]) -> None:
    pytest.importorskip("bm25s", reason="passages are found by bm25s")
    with pytest.raises(ConfigError, match=r"the corpus has no word to search for\n  to mend: .*prepare it again"):
        Bm25Index([Passage(str(number), text) for number, text in enumerate(texts)])


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus.jsonl", [*PASSAGES, Passage("5", 'Ä "quoted"\nline')])
    assert read_corpus(tmp_path / "corpus.jsonl") == [*PASSAGES, Passage("5", 'Ä "quoted"\nline')]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the corpus is empty"),
        ("\n \n", "the corpus is empty"),
        ('{"id": "1", "text": "a"}\n{"id": "2"}\n', r"corpus.jsonl:2: no passage: .*missing required field `text`"),
        ('{"id": 1, "text": "a"}\n', r"corpus.jsonl:1: no passage: Expected `str`, got `int`"),
        ("nonsense\n", r"corpus.jsonl:1: no passage"),
    ],
)
def test_a_bad_corpus_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_corpus(tmp_path / "corpus.jsonl")


def test_a_missing_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the corpus cannot be read: No such file"):
        read_corpus(tmp_path / "corpus.jsonl")
    with pytest.raises(ConfigError, match="the corpus cannot be read: Is a directory"):
        read_corpus(tmp_path)
