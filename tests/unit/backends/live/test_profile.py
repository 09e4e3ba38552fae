"""The first plan of a run on prepared tasks has lengths to plan for."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.backends.live.profile import NUM_TRAJECTORIES, write_expected_profile
from libra.core.registry import Registry
from libra.workloads.trace_file import read_trace


@pytest.mark.parametrize("max_context_tok", [2_560, 32_768])
@pytest.mark.parametrize("name", ["search-r1", "dapo-math", "r2e-gym"])
def test_prepared_tasks_take_the_generators_lengths(name: str, max_context_tok: int, tmp_path: Path) -> None:
    path = tmp_path / "profile.jsonl.gz"
    write_expected_profile(path, Registry().get("workload", name), 0, max_context_tok)
    _, rows = read_trace(path)
    assert NUM_TRAJECTORIES * 0.9 <= len(rows) <= NUM_TRAJECTORIES  # less those whose prompt alone fills the context
    assert all(0 < row.total_tok <= max_context_tok for row in rows)
