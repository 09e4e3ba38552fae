"""Files stay readable in one sitting and functions on one screen: the maxima of the house style, and what we have."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

PACKAGES = ("libra", "baselines", "analysis", "paper_figures", "experiments")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def percentile(values: list[int], share: float) -> int:
    """Nearest-rank percentile; 0 for no values."""
    return sorted(values)[int(share * (len(values) - 1))] if values else 0


def file_lines(root: Path) -> dict[str, int]:
    files = (file for package in PACKAGES for file in (root / package).rglob("*.py"))
    return {str(file.relative_to(root)): len(file.read_text().splitlines()) for file in files}


def function_lines(root: Path) -> dict[str, int]:
    """Lines from `def` to the last statement; decorators do not count, inner functions count twice."""
    sizes = {}
    for name in file_lines(root):
        for node in ast.walk(ast.parse((root / name).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                sizes[f"{name}:{node.lineno} {node.name}"] = node.end_lineno - node.lineno + 1
    return sizes


def check(what: str, sizes: dict[str, int], limit: int, record_property: Callable[[str, object], None]) -> None:
    lengths = [lines for lines in sizes.values() if lines > 1]  # a package marker is no file to read
    spread = "/".join(str(percentile(lengths, share)) for share in (0.5, 0.9, 1.0))
    record_property("report", f"{len(lengths)} {what}, lines p50/p90/max: {spread} (limit {limit})")
    assert {name: lines for name, lines in sizes.items() if lines > limit} == {}


def test_no_file_is_longer_than_the_limit(project_root: Path, record_property: Callable[[str, object], None]) -> None:
    check("files", file_lines(project_root), MAX_FILE_LINES, record_property)


def test_no_function_is_longer_than_the_limit(
    project_root: Path, record_property: Callable[[str, object], None]
) -> None:
    check("functions", function_lines(project_root), MAX_FUNCTION_LINES, record_property)


def test_an_oversized_function_is_seen(tmp_path: Path) -> None:
    (tmp_path / "libra").mkdir()
    (tmp_path / "libra" / "long.py").write_text("def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES)
    assert function_lines(tmp_path) == {"libra/long.py:1 f": MAX_FUNCTION_LINES + 1}
    assert file_lines(tmp_path) == {"libra/long.py": MAX_FUNCTION_LINES + 1}
