"""The light base stays light: no module of it reaches for torch and its kin, and `libra --help` waits for no pandas."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PACKAGES = ("libra", "baselines", "analysis", "paper_figures", "experiments")
HEAVY = {"torch", "vllm", "megatron", "ray", "verl", "numba", "bm25s", "math_verify", "sympy", "huggingface_hub"}
LATE = {"pandas", "matplotlib", "seaborn", "duckdb", "scipy", "wandb"}
"""What only some verbs need: `libra --help` has to answer in half a second."""

# Rooms that belong to the extras `live`, `gpu` and `fast`.
EXTRAS = ("libra.backends.live", "libra.backends.sim.compiled", "libra.integrations.verl")

# Notes every module that anybody asks for, installed or not: `try: import torch` counts as well.
PROBE = """
import importlib, json, pkgutil, sys

asked = set()

class Note:
    @staticmethod
    def find_spec(name, path=None, target=None):
        asked.add(name.partition(".")[0])

sys.meta_path.insert(0, Note)
names, packages, extras = json.loads(sys.argv[1])

def fail(name):
    raise

for name in packages:
    package = importlib.import_module(name)
    names.append(name)
    names += [info.name for info in pkgutil.walk_packages(package.__path__, name + ".", fail)]
for name in names:
    if not name.startswith(tuple(extras)) and not name.endswith("__main__"):
        importlib.import_module(name)
print(json.dumps([len(names), sorted(asked)]))
"""


def asked_for(root: Path, names: list[str], packages: tuple[str, ...] = ()) -> tuple[int, set[str]]:
    """Number of modules imported, and the top-level names of all modules asked for on the way."""
    command = [sys.executable, "-c", PROBE, json.dumps([names, packages, EXTRAS])]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    num_modules, asked = json.loads(done.stdout.splitlines()[-1])
    return num_modules, set(asked)


def test_no_module_of_the_light_base_asks_for_torch_and_its_kin(project_root: Path) -> None:
    num_modules, asked = asked_for(project_root, [], PACKAGES)
    assert num_modules >= 20
    assert asked & HEAVY == set()


def test_the_command_line_starts_without_heavy_imports(project_root: Path) -> None:
    _, asked = asked_for(project_root, ["experiments.cli"])
    assert asked & (LATE | HEAVY) == set()


def test_an_import_that_is_tried_and_given_up_is_seen(tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text("try:\n    import torch\nexcept ImportError:\n    torch = None\n")
    assert "torch" in asked_for(tmp_path, ["guarded"])[1]
