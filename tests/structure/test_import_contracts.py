"""The import contracts of pyproject.toml hold on the tree, and each breaks when its violation is planted.

import-linter has the standard library in its graph too, so `import time` in a decision needs no checker of our own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

PACKAGES = ("libra", "baselines", "analysis", "paper_figures", "experiments")

# contract -> (module file, offending line) pairs; each alone must break it.
VIOLATIONS = {
    "libra-layers": [
        ("libra/core/planted.py", "import libra.planning"),
        ("libra/routing/planted.py", "from libra import elastic"),
        ("libra/policies/planted.py", "import libra.backends.sim"),
        ("libra/a_room_without_a_place/__init__.py", "import libra.core"),
    ],
    "top-layers": [
        ("libra/runtime/planted.py", "import baselines"),
        ("analysis/planted.py", "import paper_figures"),
        ("baselines/planted.py", "import experiments"),
    ],
    "pure-decisions": [
        ("libra/cost/planted.py", "import time"),
        ("libra/routing/planted.py", "from random import random"),
        ("libra/policies/planted.py", "def late():\n    import torch"),
        ("baselines/routers/planted.py", "import pandas as pd"),
    ],
    "estimate-and-truth": [
        ("libra/backends/sim/truth.py", "import libra.cost"),
        ("libra/cost/planted.py", "from libra.backends.sim import truth"),
    ],
    "readers": [
        ("analysis/planted.py", "import libra.runtime"),
        ("paper_figures/planted.py", "from libra.cost import *"),
        ("analysis/planted.py", "import baselines.routers"),
    ],
}


def lint_imports(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def contracts(root: Path) -> list[dict[str, object]]:
    return tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, project_root: Path) -> Path:
    """The packages' sources and pyproject.toml in a folder that a test may spoil, if it mends it afterwards."""
    folder = tmp_path_factory.mktemp("tree")
    shutil.copy(project_root / "pyproject.toml", folder)
    for package in PACKAGES:
        for file in (project_root / package).rglob("*.py"):
            target = folder / file.relative_to(project_root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
    return folder


def test_the_tree_keeps_every_contract(project_root: Path) -> None:
    done = lint_imports(project_root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Contracts: 5 kept, 0 broken." in done.stdout


@pytest.mark.parametrize(
    ("contract", "file", "line"),
    [(contract, file, line) for contract, planted in VIOLATIONS.items() for file, line in planted],
)
def test_a_planted_violation_breaks_its_contract(copy: Path, contract: str, file: str, line: str) -> None:
    target = copy / file
    before = target.read_text() if target.exists() else None
    target.parent.mkdir(exist_ok=True)
    target.write_text(f"{before or ''}\n{line}\n")
    try:
        done = lint_imports(copy, "--contract", contract)
    finally:
        if before is None:
            target.unlink()
        else:
            target.write_text(before)
        if not any(target.parent.iterdir()):
            target.parent.rmdir()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Contracts: 0 kept, 1 broken." in done.stdout, done.stdout + done.stderr


def test_every_contract_has_a_planted_violation(project_root: Path) -> None:
    assert {contract["id"] for contract in contracts(project_root)} == set(VIOLATIONS)


def test_no_part_of_the_truth_knows_the_estimate() -> None:
    """`estimate-and-truth` names the truth's front door; what stands beside it as truth_*.py is held here."""
    graph = grimp.build_graph("libra", cache_dir=None)
    for module in graph.modules:
        if module.startswith("libra.backends.sim.truth"):
            assert graph.find_shortest_chains(importer=module, imported="libra.cost", as_packages=True) == set()


def test_every_room_of_libra_is_closed_or_open_to_readers(project_root: Path) -> None:
    (readers,) = (contract for contract in contracts(project_root) if contract["id"] == "readers")
    closed = {str(name).removeprefix("libra.") for name in readers["forbidden_modules"]}  # type: ignore[attr-defined]
    rooms = {path.parent.name for path in (project_root / "libra").glob("*/__init__.py")}
    assert rooms - closed == {"core", "clusters", "models", "results"}
