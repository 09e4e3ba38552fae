"""The first plan of a run on prepared tasks has lengths to plan for."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.backends.live.profile import NUM_TRAJECTORIES, write_expected_profile
from libra.core.registry import Registry
from libra.workloads.trace_file import read_trace


@pytest.mark.parametrize("name", ["search-r1", "dapo-math", "r2e-gym"])
def test_prepared_tasks_take_the_generators_lengths(name: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl.gz"
    write_expected_profile(path, Registry().get("workload", name), 0, 32_768)
    _, rows = read_trace(path)
    assert len(rows) == NUM_TRAJECTORIES
    assert all(0 < row.total_tok <= 32_768 for row in rows)
