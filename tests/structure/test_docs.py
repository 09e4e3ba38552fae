"""Every command in the documentation is run, as it stands or in the reduced form declared here.

A command is a line of a fenced `bash` block (`sh`, `shell` and `console` count too) in README.md, CONTRIBUTING.md or
docs/. All commands run in one folder in the order of the documents, so a later one finds the cells of an earlier one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300

# Quick enough to run as they stand.
AS_IS = (
    r"libra( [a-z]+)* --help",
    r"libra list( .+)?",
    r"libra (demo|run smoke|status|claims)( smoke)?",
    r"libra (run|train) .* --dry-run",
    r"libra run (coins|smoke --set) .*",
    r"libra validate --gpu \S+",
    r"libra plan (?!--from rollouts).*",
    r"libra calibrate .* --dry-run",
    r"libra (figures|report) --out [a-z]+",
)

# Documented command -> what the test runs for it. `{root}` is the project, `{venv}` the environment of this test run,
# `{desk}` the reader's folder.
# Commands that need a GPU or a network are reduced to their --dry-run; those that install or run this very test suite,
# to what `make` would do.
MAKE = "make -C {root} VENV={venv} -o {venv}/.installed-light -o {venv}/.installed-dev"
CELL = """$(libra status smoke --json | python -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])')"""
BLIND = "libra run smoke --policy hand-blind --only policy=hand-blind,workload=dapo-math"
SIZES = ("4+4+4+4+4+4", "4+4+4+4+4+4+4+4", "4+4+4+4")
REDUCED = {
    "make test": f"{MAKE} -n test",
    "make live": f"{MAKE} -n live",
    "make lint": f"{MAKE} -n lint",
    "make reproduce": (
        f"{MAKE} reproduce STORE=$PWD/made FIGURES=$PWD/made-figures REPORT=$PWD/made-report TRACES=none "
        'REPRODUCE_STUDIES=smoke REPRODUCE_OPTIONS="--seeds 1 --steps 2"'
    ),
    ".venv/bin/python -m pytest tests/structure": "cd {root} && python -m pytest -q tests/structure/test_size.py",
    '.venv/bin/python -m pytest -m "not slow"': (
        'cd {root} && python -m pytest -q -m "not slow" --collect-only tests/structure/test_size.py'
    ),
    "libra run ablation --seeds 3 --steps 50": "libra run ablation --seeds 1 --steps 2",
    "libra plan --from rollouts/ --model qwen3-4b": "libra plan --from {root}/tests/data --model qwen3-4b",
    "libra import auto tests/data --out traces/mine.jsonl.gz": (
        "libra import auto {root}/tests/data --out traces/mine.jsonl.gz"
    ),
    "libra run traces --trace traces/mine.jsonl.gz --seeds 1 --steps 4": (
        "libra run traces --trace traces/mine.jsonl.gz --seeds 1 --steps 2 --only policy=libra"
    ),
    **{
        f"{BLIND} --set policy.engines={sizes}": f"{BLIND} --set policy.engines={sizes} --store blind"
        for sizes in SIZES
    },
    "libra plan --from runs/cells/ID1 --from runs/cells/ID2 --from runs/cells/ID3 --backtest": (
        "libra plan $(printf -- '--from %s ' blind/cells/*) --backtest"
    ),
    "libra validate": "libra validate || test $? -eq 3",
    "libra calibrate --device cuda --cluster my_h100.toml --out my_h100.csv --minutes 10": (
        "libra calibrate --device cuda --cluster my_h100.toml --out my_h100.csv --minutes 10 --dry-run"
    ),
    "python -m libra.backends.sim.fit": "python -m libra.backends.sim.fit --dry-run",
    "libra show CELL": f"libra show {CELL}",
    "libra replay CELL": f"libra replay {CELL}",
    "libra trace CELL": f"libra trace {CELL}",
    "libra record CELL --out traces/run.jsonl.gz": f"libra record {CELL} --out traces/run.jsonl.gz",
    "libra run smoke --plugin my_policies --policy tp4-16": (
        "libra run smoke --plugin my_policies --policy tp4-16 --steps 2 && "
        "test $(libra status smoke --json | grep -c tp4-16) -gt 0"
    ),
    "python -m pytest tests/contract --plugin my_policies": (
        "cd {root} && python -m pytest -q tests/contract --plugin {desk}/my_policies -k 'tp4-16 or round-robin'"
    ),
}
"""A command with braces of its own doubles them."""


@dataclass(frozen=True)
class Command:
    """One command and the place where a reader finds it."""

    place: str
    text: str


def documents(root: Path) -> list[Path]:
    pages = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]
    return [page for page in pages if page.exists()]


def commands_of(text: str, name: str) -> Iterator[Command]:
    """Commands of a page: comments and prompts removed, lines that end in a backslash joined."""
    fence, joined = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r"\s*(`{3,}|~{3,})\s*(\w*)", line)
        if opened and (not fence or not opened[2]):
            fence = "" if fence else opened[2] or "text"
        elif fence in ("bash", "sh", "shell", "console"):
            joined += re.sub(r"(^|\s+)#(\s.*|$)", "", line).strip().removeprefix("$ ")
            if joined.endswith("\\"):
                joined = joined.removesuffix("\\")
            elif joined:
                yield Command(f"{name}:{number}", " ".join(joined.split()))
                joined = ""


def documented() -> list[Command]:
    """Each command of the documentation once, where it first stands."""
    found: dict[str, Command] = {}
    for page in documents(ROOT):
        for command in commands_of(page.read_text(), str(page.relative_to(ROOT))):
            found.setdefault(command.text, command)
    return list(found.values())


def to_run(command: Command, desk: Path) -> str:
    """What the test runs for a command. Fails for one that is neither quick nor in the table."""
    if command.text in REDUCED:
        return REDUCED[command.text].format(root=ROOT, venv=sys.prefix, desk=desk)
    if not any(re.fullmatch(pattern, command.text) for pattern in AS_IS):
        pytest.fail(
            f"{command.place}: `{command.text}` is run by no test: give it a reduced form in REDUCED of "
            "tests/structure/test_docs.py, or a pattern in AS_IS if it is quick"
        )
    return command.text


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, shared by all commands; blocks of Python, TOML or CSV that name a file are files in it."""
    folder = tmp_path_factory.mktemp("desk")
    for page in documents(ROOT):
        for name, code in re.findall(r"```(?:python|toml|csv)\n# (\S+)\n(.*?)```", page.read_text(), flags=re.DOTALL):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(code)
    return folder


@pytest.mark.parametrize("command", [pytest.param(command, id=command.text) for command in documented()])
def test_a_documented_command_runs(command: Command, desk: Path) -> None:
    line = to_run(command, desk)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=desk,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command.place}: `{command.text}`, run as `{line}`\n{done.stdout}\n{done.stderr}"


def test_the_table_holds_documented_commands_only() -> None:
    assert set(REDUCED) - {command.text for command in documented()} == set()


def test_a_command_that_nobody_runs_is_named() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"README\.md:7: `libra conquer` is run by no test"):
        to_run(Command("README.md:7", "libra conquer"), Path())


def test_commands_are_read_as_a_reader_reads_them() -> None:
    page = """
```bash
# a comment
$ libra list policies   # all of them
libra run smoke \\
    --seeds 1

```
```python
libra = "no command"
```
~~~console
libra --help
~~~
"""
    assert [(command.place, command.text) for command in commands_of(page, "x.md")] == [
        ("x.md:4", "libra list policies"),
        ("x.md:6", "libra run smoke --seeds 1"),
        ("x.md:13", "libra --help"),
    ]
