"""Tasks of a data folder: `train.jsonl` and `held_out.jsonl`, a task a line.

    {"id": "stats-1", "prompt": "Fix mean in stats.py\\n",
     "files": {"stats.py": "def mean...", "test.py": "..."}, "sources": ["stats.py"],
     "hidden": [{"module": "stats", "function": "mean", "arguments": [[1, 2]], "expected": 1.5}]}

`files` is the repository that the agent gets. `sources` are those of them whose final version is judged; all others,
tests among them, are put back first. `hidden` are calls and what they must return.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from libra.core.errors import ConfigError
from libra.workloads.environments.base import Split, Task
from libra.workloads.environments.r2e_grading import HiddenTest, Truth

SPLITS: tuple[Split, ...] = ("train", "held_out")


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line."""

    id: str
    prompt: str
    files: dict[str, str]
    sources: list[str]
    hidden: list[HiddenTest]


def read_tasks(folder: Path) -> dict[Split, tuple[Task, ...]]:
    """Raises `ConfigError` with file, line and reason."""
    seen: dict[str, str] = {}
    return {split: tuple(_tasks(folder / f"{split}.jsonl", seen)) for split in SPLITS}


def _tasks(path: Path, seen: dict[str, str]) -> Iterator[Task]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(path), mend="`data` names a folder with train.jsonl and "
            "held_out.jsonl; leave it out for generated repositories",
        ) from error  # fmt: skip
    number = 0
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        record = _record(line, where)
        if record.id in seen:
            mend = f"rename it; the other stands in {seen[record.id]}"
            raise ConfigError("two tasks with one id", where=where, value=record.id, mend=mend)
        seen[record.id] = where
        truth = Truth(record.files, record.sources, record.hidden)
        yield Task(record.id, record.prompt, msgspec.to_builtins(truth))
    if not number:
        raise ConfigError("no task in there", where=str(path), mend="a task a line")


def _record(line: bytes, where: str) -> Record:
    try:
        record = msgspec.json.decode(line, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"no task: {error}", where=where, allowed=Record.__struct_fields__) from error
    for name in record.files:
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts or "\0" in name:
            raise ConfigError("a file outside the repository", where=where, value=name, mend="name it from its root")
    for name in record.sources:
        if name not in record.files:
            raise ConfigError("a source that is no file of the task", where=where, value=name, allowed=record.files)
    for field in ("sources", "hidden"):
        if not getattr(record, field):
            raise ConfigError(f"{field} is empty", where=where, mend="without it nothing can earn the reward")
    return record
