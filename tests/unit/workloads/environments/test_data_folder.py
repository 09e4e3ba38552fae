"""Prepared folders: what is refused, and with which words."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from libra.core.errors import ConfigError
from libra.workloads.environments.data_folder import (
    DataFolder,
    Manifest,
    ProblemRow,
    read_manifest,
    sha256_of,
    write_manifest,
    write_rows,
)

ROWS = [ProblemRow("a", "1+1?", "2"), ProblemRow("b", "½ of 1?", r"\frac{1}{2}")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {name: write_rows(tmp_path / name, ROWS) for name in ("train.jsonl", "held_out.jsonl")}
    write_manifest(tmp_path, Manifest("dapo-math", files=files))
    return tmp_path


def test_rows_are_read_as_they_were_written(folder: Path) -> None:
    opened = DataFolder.open(folder, "dapo-math")
    assert opened.rows("train", ProblemRow) == ROWS
    entry = opened.manifest.files["train.jsonl"]
    assert (entry.rows, entry.bytes) == (2, (folder / "train.jsonl").stat().st_size)
    assert entry.sha256 == sha256_of(folder / "train.jsonl")


def test_no_half_file_is_ever_seen(tmp_path: Path) -> None:
    def rows() -> Iterable[ProblemRow]:
        yield ROWS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_rows(tmp_path / "train.jsonl", rows())
    assert not (tmp_path / "train.jsonl").exists()


def damage(folder: Path, name: str, content: str | None) -> None:
    """Changes a file, or removes it, without telling the manifest."""
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("manifest.json", None, "no prepared data there"),
        ("manifest.json", "{}", "no manifest: .*missing required field `workload`"),
        ("manifest.json", '{"workload": "dapo-math", "format": 9}', "another format of prepared data"),
        ("manifest.json", '{"workload": "search-r1"}', r"prepared for another workload \(got 'search-r1'\)"),
        ("manifest.json", '{"workload": "dapo-math"}', "train.jsonl: the file is missing; its preparation did not end"),
        ("held_out.jsonl", None, "held_out.jsonl: the file is missing"),
        ("held_out.jsonl", "", r"held_out.jsonl: the file changed: \d+ bytes were written"),
    ],
)
def test_a_bad_folder_is_refused(folder: Path, name: str, content: str | None, message: str) -> None:
    damage(folder, name, content)
    with pytest.raises(ConfigError, match=message):
        DataFolder.open(folder, "dapo-math")


def test_an_empty_file_is_refused(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest is not None
    empty = write_rows(folder / "train.jsonl", [])
    write_manifest(folder, msgspec.structs.replace(manifest, files={**manifest.files, "train.jsonl": empty}))
    with pytest.raises(ConfigError, match=r"train.jsonl: the file is empty\n  to mend: libra data prepare dapo-math"):
        DataFolder.open(folder, "dapo-math")


def test_a_missing_column_is_told_with_its_line(folder: Path) -> None:
    text = (folder / "train.jsonl").read_text()
    damage(folder, "train.jsonl", text.replace('"answer":"2"', '"answe_":"2"'))
    opened = DataFolder.open(folder, "dapo-math")
    with pytest.raises(
        ConfigError, match=r"train.jsonl:1: not a row .* field `answer`\n  allowed: id, problem, answer"
    ):
        opened.rows("train", ProblemRow)
