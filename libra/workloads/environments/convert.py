"""Public data sets, row by row, into the rows of a `data_folder`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from libra.core.errors import ConfigError
from libra.core.rng import seed_of
from libra.workloads.environments.base import Split
from libra.workloads.environments.data_folder import ProblemRow, QuestionRow
from libra.workloads.tools.corpus import Passage

HELD_OUT_ONE_IN = 50
"""DAPO-Math-17K has one split; some 350 of its problems are held out, chosen by a hash of their text."""

MATH_HEAD = "is the answer to the problem.\n\n"
MATH_TAIL = '\n\nRemember to put your answer on its own line after "Answer:".'
"""DAPO's own instructions around each problem; ours ask for a box instead."""


def question_rows(table: Path, without: Path | None = None) -> Iterator[QuestionRow]:
    """NQ and HotpotQA in FlashRAG's form. Each question once, none that stands in `without`."""
    columns = ("question", "golden_answers")
    seen = set() if without is None else {_key(row["question"]) for row in _table(without, ("question",))}
    for number, row in enumerate(_table(table, columns)):
        answers = [str(answer) for answer in row["golden_answers"] or () if str(answer).strip()]
        key = _key(row["question"] or "")
        if key and answers and key not in seen:
            seen.add(key)
            yield QuestionRow(f"{table.stem}-{number}", row["question"].strip(), answers)


def corpus_rows(packed: Path) -> Iterator[Passage]:
    """Wikipedia in FlashRAG's form: `contents` is the title in quotes, a line break and the text."""
    with gzip.open(packed, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                title, _, text = row["contents"].partition("\n")
                passage = Passage(str(row["id"]), f"{title.strip().strip(chr(34))}: {text.strip()}")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"no passage of this corpus: {error!r}", where=f"{packed}:{number}", allowed=["id", "contents"]
                ) from error
            yield passage


def problem_rows(table: Path, split: Split) -> Iterator[ProblemRow]:
    """DAPO-Math-17K. The table repeats each problem a hundred times; each is taken once."""
    seen: set[str] = set()
    for row in _table(table, ("prompt", "reward_model")):
        problem = _problem(row["prompt"][0]["content"])
        if problem in seen:
            continue
        seen.add(problem)
        number = seed_of("dapo-math", "held out", problem)
        if (number % HELD_OUT_ONE_IN == 0) == (split == "held_out"):
            yield ProblemRow(f"{number:032x}", problem, str(row["reward_model"]["ground_truth"]))


def _problem(prompt: str) -> str:
    """The text between the instructions; the whole prompt where they are worded otherwise."""
    return prompt.partition(MATH_HEAD)[2].removesuffix(MATH_TAIL).strip() or prompt.strip()


def _key(question: str) -> str:
    """Equal for questions that differ in case, spaces or the question mark alone."""
    return " ".join(question.lower().rstrip("? ").split())


def _table(path: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Rows of a parquet file. Raises `ConfigError` for one that cannot be read or has other columns."""
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigError(f"no parquet file: {error}", where=str(path), mend="delete it and run again") from error
    with file:
        names = file.schema_arrow.names
        for column in columns:
            if column not in names:
                raise ConfigError("a column is missing", where=str(path), value=column, allowed=names)
        for batch in file.iter_batches(batch_size=10_000, columns=list(columns)):
            yield from batch.to_pylist()
