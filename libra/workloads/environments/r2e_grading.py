"""Hidden tests: the agent's sources, on a clean copy, asked for values that are compared out here.

The expected values never enter the sandbox, so that nothing which runs there can fake a pass: it would have to return
what the right function returns.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from libra.workloads.tools.edit import read_inside
from libra.workloads.tools.sandbox import Limits, Sandbox

LIMITS = Limits(wall_s=10.0, cpu_s=3, output_bytes=1 << 16)

# `-I` keeps the folder, sitecustomize and PYTHON* out of the start; the folder comes last, so that no file in it takes
# the place of a standard module. What agents' code prints itself does not matter: the last answer counts, and whoever
# prints the right values has computed them.
RUNNER = """
import importlib, json, sys
calls = json.load(sys.stdin)
sys.path.append(".")
values = []
for call in calls:
    try:
        module = importlib.import_module(call["module"])
        values.append({"value": getattr(module, call["function"])(*call["arguments"])})
    except Exception as error:
        values.append({"error": type(error).__name__})
print("\\n" + json.dumps(values))
"""


class HiddenTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`module.function(*arguments)` has to return `expected`, both JSON."""

    module: str
    function: str
    arguments: list[Any]
    expected: Any


class Truth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task's repository, the files of it that the agent's version is taken of, and what these must compute."""

    files: dict[str, str]
    sources: list[str]
    hidden: list[HiddenTest]


def agent_sources(truth: Truth, folder: Path) -> dict[str, str] | None:
    """The agent's version of the sources; None when one is gone, or is no plain file."""
    found = {name: read_inside(folder, name) for name in truth.sources}
    return {name: text for name, text in found.items() if text is not None} if None not in found.values() else None


async def passes(sandbox: Sandbox, work: Path, truth: Truth, sources: Mapping[str, str]) -> bool:
    """Whether all hidden tests pass on the task's files with these sources in their place."""
    calls = [{"module": t.module, "function": t.function, "arguments": t.arguments} for t in truth.hidden]
    with tempfile.TemporaryDirectory(dir=work, prefix="grade-", ignore_cleanup_errors=True) as name:
        write_files(Path(name), {**truth.files, **sources})
        result = await sandbox.run(
            ["python3", "-I", "-S", "-c", RUNNER],
            Path(name),
            LIMITS,
            json.dumps(calls).encode(),
        )
    if result.status != "ok" or result.is_truncated:
        return False
    return answers_match(result.output.rstrip("\n").rpartition("\n")[2], [test.expected for test in truth.hidden])


def answers_match(text: str, expected: Sequence[Any]) -> bool:
    """Whether the values in the runner's answer are the expected ones, types included (1 is neither 1.0 nor True)."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return canonical(found) == canonical([{"value": value} for value in expected])


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
