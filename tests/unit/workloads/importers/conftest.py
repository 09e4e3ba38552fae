"""Hand-made dumps of every format, and short names for importing and writing them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libra.workloads.importers import ImportResult, import_dump

Imported = Callable[..., ImportResult]


@pytest.fixture
def dumps(project_root: Path) -> Path:
    """Folder with a folder per format."""
    return project_root / "tests" / "data"


@pytest.fixture
def lines(tmp_path: Path) -> Callable[..., Path]:
    """Write values as JSON Lines (strings stay as they are) and return the path."""

    def write(name: str, *values: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in values))
        return path

    return write


@pytest.fixture
def imported() -> Imported:
    """`import_dump` with the format first and any number of paths."""
    return lambda format_name, *paths: import_dump(format_name, paths)
