"""What every test may ask for: the project's folder, and the reference material that may lie beside a checkout."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def shared_root() -> Path:
    """Reference material (facts, calibration data, traces) beside the checkout; skips the test where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the reference material in ../shared, which is not part of the product")
    return folder


def pytest_configure() -> None:
    """Ctrl-C works in tests and the processes they start, also where the suite runs in the background of a script
    (there it would be ignored by inheritance)."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu(n)` (n defaults to 1) are skipped where torch sees fewer GPUs."""
    wanted = [(item, max(mark.args[0] if mark.args else 1 for mark in item.iter_markers("gpu")))
              for item in items if item.get_closest_marker("gpu")]  # fmt: skip
    there = num_gpus() if wanted else 0
    for item, num in wanted:
        if num > there:
            item.add_marker(pytest.mark.skip(reason=f"needs {num} NVIDIA GPUs, torch sees {there}"))


def num_gpus() -> int:
    """GPUs that torch sees; 0 without torch."""
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests recorded as `record_property("report", line)`: measurements worth seeing on every run."""
    outcomes = (terminalreporter.getreports(outcome) for outcome in ("passed", "failed"))
    calls = (report for reports in outcomes for report in reports if getattr(report, "when", None) == "call")
    lines = [value for report in calls for key, value in report.user_properties if key == "report"]
    if lines:
        terminalreporter.section("measured")
        for line in lines:
            terminalreporter.write_line(str(line))
