"""Short real runs: a plug-in policy of the tests on the simulator, with trajectories that are all alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store


@pytest.fixture
def plugin(project_root: Path) -> Path:
    return project_root / "tests" / "plugins" / "round_robin.py"


@pytest.fixture
def registry(plugin: Path) -> Registry:
    return Registry((plugin,))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """A cell of 3 steps of 8 trajectories; keyword arguments are the policy's options."""

    def make(seed: int = 0, policy: str = "round-robin", study: str = "test", **options: Any) -> Cell:
        overrides: dict[str, Any] = {
            "workload.num_steps": 3,
            "workload.batch": 8,
            "workload.group_size": 2,
            "workload.length_tok": 512,
            "workload.turns": 2,
            "sim.check": True,
        }
        overrides |= {f"policy.{name}": value for name, value in options.items()}
        return Cell.make(study, "fixed-length", "a800x8", "qwen3-4b", policy, seed=seed, overrides=overrides)

    return make
