"""BM25 over a corpus by the library bm25s, with an order of ties that is the same on every machine."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

import numpy as np

from libra.core.errors import ConfigError
from libra.workloads.tools.corpus import Passage


class Bm25Index:
    """Lucene's BM25 (k1 1.5, b 0.75), English stop words. Searches from several threads do not disturb one another."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        if importlib.util.find_spec("bm25s") is None:
            raise ConfigError(
                "passages are found by the library bm25s, which is not installed",
                where="search-r1",
                mend="pip install bm25s (part of the extras `live` and `gpu`)",
            )
        import bm25s

        self._passages = tuple(passages)
        self._bm25 = bm25s.BM25(backend="numpy")
        words = bm25s.tokenize([each.text for each in self._passages], stopwords="en", show_progress=False)
        if not any(words.ids):
            raise ConfigError(
                "the corpus has no word to search for", where="search-r1",
                mend="its passages are empty or hold stop words only: prepare it again",
            )  # fmt: skip
        self._bm25.index(words, show_progress=False)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, query: str, top_k: int) -> list[Passage]:
        """Best first, equally good ones as in the corpus; fewer than `top_k` where fewer share a word with `query`."""
        import bm25s

        words = bm25s.tokenize(query, stopwords="en", return_ids=False, show_progress=False)[0]
        known = self._bm25.get_tokens_ids(words) if words else []
        if not known:
            return []
        scores = self._bm25.get_scores_from_ids(known)
        num = min(top_k, len(scores))
        least = max(np.partition(scores, -num)[-num], np.finfo(scores.dtype).tiny)
        found = np.flatnonzero(scores >= least)
        best = found[np.lexsort((found, -scores[found]))][:num]
        return [self._passages[index] for index in best]
