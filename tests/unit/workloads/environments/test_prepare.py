"""`libra data prepare` on small tables in the public schemas: conversion, checksums, resume, and failures."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libra.core.errors import ConfigError
from libra.workloads.environments.base import EnvironmentContext
from libra.workloads.environments.convert import MATH_HEAD, MATH_TAIL, corpus_rows, problem_rows, question_rows
from libra.workloads.environments.dapo_math import DapoMath
from libra.workloads.environments.data_folder import DataFolder, QuestionRow
from libra.workloads.environments.prepare import HuggingFaceHub, plan, prepare
from libra.workloads.environments.search_r1 import SearchR1
from libra.workloads.tools.corpus import Passage, read_corpus


def question(text: str, *answers: str, number: int = 0) -> dict[str, Any]:
    """A row as Search-R1 publishes it."""
    return {
        "id": f"train_{number}",
        "question": text,
        "golden_answers": list(answers),
        "data_source": "nq",
        "prompt": [{"role": "user", "content": f"Answer <answer> Beijing </answer>. Question: {text}\n"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": list(answers)}, "style": "rule"},
        "extra_info": {"index": number, "split": "train"},
    }


def problem(text: str, answer: str) -> dict[str, Any]:
    """A row as DAPO-Math-17K has it."""
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": f"Solve the following math problem. It {MATH_HEAD}{text}{MATH_TAIL}"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "x"},
    }


TRAIN = [
    question("who wrote it?", "Ann", "A. Ann"),
    question("Who wrote it", "Bob"),
    question("where?"),
    question("", "x"),
]
TEST = [question("WHO wrote it ?", "Ann"), question("when?", "1918")]
PROBLEMS = [problem(f"What is {i}+{i}?", str(2 * i)) for i in range(200)] * 3
CORPUS = [{"id": "0", "contents": '"Ann"\nAnn wrote it.'}, {"id": "1", "contents": '"A "B" C"\nTwo\nlines.'}]


class LocalHub:
    """Public files made here; counts downloads."""

    def __init__(self) -> None:
        self.downloads: list[str] = []
        self.fails_at = ""

    def revision(self, repo: str) -> str:
        return f"revision-of-{repo}"

    def download(self, repo: str, file: str, revision: str, folder: Path) -> Path:
        if file == self.fails_at:
            raise ConfigError("the download failed", where=file)
        self.downloads.append(file)
        path = folder / repo.replace("/", "--") / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith(".gz"):
            path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in CORPUS).encode(), mtime=0))
        else:
            rows = {"train.parquet": TRAIN, "test.parquet": TEST}.get(file, PROBLEMS)
            pq.write_table(pa.Table.from_pylist(rows), path)
        return path


def test_search_r1_is_prepared_and_read(tmp_path: Path) -> None:
    hub, told = LocalHub(), []
    manifest = prepare("search-r1", tmp_path, hub, told.append)
    assert DataFolder.open(tmp_path, "search-r1").rows("train", QuestionRow) == [
        QuestionRow("train-0", "who wrote it?", ["Ann", "A. Ann"])
    ]
    environment = SearchR1(EnvironmentContext(tmp_path, data=tmp_path))
    (task,) = environment.tasks("held_out")
    assert (task.id, task.truth) == ("test-1", {"answers": ["1918"]})
    assert task.prompt.endswith("\nQuestion: when?")
    assert read_corpus(environment.corpus()) == [
        Passage("0", "Ann: Ann wrote it."),
        Passage("1", 'A "B" C: Two\nlines.'),
    ]
    assert {source.revision for source in manifest.sources} == {
        "revision-of-PeterJinGo/nq_hotpotqa_train",
        "revision-of-PeterJinGo/wiki-18-corpus",
    }
    assert [line.partition(":")[0] for line in told] == ["train.jsonl", "held_out.jsonl", "corpus.jsonl"]


def test_dapo_math_is_prepared_and_read(tmp_path: Path) -> None:
    prepare("dapo-math", tmp_path, LocalHub())
    environment = DapoMath(EnvironmentContext(tmp_path, data=tmp_path))
    train, held_out = environment.tasks("train"), environment.tasks("held_out")
    assert len(train) + len(held_out) == 200
    assert 0 < len(held_out) < 20
    assert {task.prompt for task in train}.isdisjoint(task.prompt for task in held_out)
    texts = {task.prompt.partition("\nProblem: ")[2]: task.truth for task in (*train, *held_out)}
    assert texts["What is 7+7?"] == {"answer": "14"}


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    hub = LocalHub()
    hub.fails_at = "wiki-18.jsonl.gz"
    with pytest.raises(ConfigError, match="the download failed"):
        prepare("search-r1", tmp_path, hub)
    with pytest.raises(ConfigError, match=r"corpus.jsonl: the file is missing; its preparation did not end"):
        DataFolder.open(tmp_path, "search-r1")
    hub.fails_at, hub.downloads = "", []
    first = prepare("search-r1", tmp_path, hub)
    assert hub.downloads == ["wiki-18.jsonl.gz"]
    hub.downloads = []
    assert prepare("search-r1", tmp_path, hub) == first
    assert hub.downloads == []
    (tmp_path / "train.jsonl").write_text("damaged")
    assert prepare("search-r1", tmp_path, hub) == first
    assert hub.downloads == ["train.parquet"]
    assert DataFolder.open(tmp_path, "search-r1").rows("train", QuestionRow)[0].question == "who wrote it?"


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("dapo-math", tmp_path, LocalHub())
    (tmp_path / "train.jsonl").unlink()
    monkeypatch.setattr(sys.modules[__name__], "PROBLEMS", PROBLEMS[:50])
    with pytest.raises(ConfigError, match="the download changed: its SHA-256 was"):
        prepare("dapo-math", tmp_path, LocalHub())


def test_a_folder_of_another_workload_is_left_alone(tmp_path: Path) -> None:
    prepare("dapo-math", tmp_path, LocalHub())
    with pytest.raises(ConfigError, match=r"another workload is prepared there \(got 'dapo-math'\)"):
        prepare("search-r1", tmp_path, LocalHub())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="no folder can be made there"):
        prepare("dapo-math", tmp_path / "file", LocalHub())


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["who?"], "answer": ["Ann"]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"a column is missing \(got 'golden_answers'\)\n  allowed: question, answer"):
        list(question_rows(tmp_path / "a.parquet"))
    with pytest.raises(ConfigError, match=r"a column is missing \(got 'prompt'\)"):
        list(problem_rows(tmp_path / "a.parquet", "train"))
    (tmp_path / "b.parquet").write_text("<html>")
    with pytest.raises(ConfigError, match="no parquet file"):
        list(question_rows(tmp_path / "b.parquet"))
    (tmp_path / "c.gz").write_bytes(gzip.compress(b'{"id": "0", "contents": "t\\nx"}\n{"id": "1", "text": "x"}\n'))
    with pytest.raises(ConfigError, match=r"c.gz:2: no passage of this corpus: KeyError"):
        list(corpus_rows(tmp_path / "c.gz"))


def test_a_data_set_without_usable_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "TRAIN", TRAIN[2:])
    with pytest.raises(ConfigError, match="the data set has no usable row"):
        prepare("search-r1", tmp_path, LocalHub())


def test_an_unknown_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown data set .*\n  did you mean 'dapo-math'"):
        list(plan("dapo-maths"))
    assert next(plan("dapo-math")) == "train.jsonl <- BytedTsinghua-SIA/DAPO-Math-17k: data/dapo-math-17k.parquet"


def test_the_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="huggingface_hub, which is not installed\n  to mend: pip install"):
        HuggingFaceHub().revision("a/b")


def test_the_missing_network_is_told(tmp_path: Path) -> None:
    """In a process of its own: the library reads the switch when it is imported."""
    pytest.importorskip("huggingface_hub", reason="data sets are downloaded by it")
    program = (
        "from pathlib import Path\n"
        "from libra.core.errors import ConfigError\n"
        "from libra.workloads.environments.prepare import HuggingFaceHub\n"
        "for ask in (lambda hub: hub.revision('a/b'), lambda hub: hub.download('a/b', 'c', 'main', Path())):\n"
        "    try:\n        ask(HuggingFaceHub())\n"
        "    except ConfigError as error:\n        print(error.what, error.mend)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.getcwd(), "HF_HOME": str(tmp_path)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all("the download failed: " in line and "it needs a network" in line for line in lines)
