"""The same stage as the policies' tests."""

from __future__ import annotations

from tests.unit.policies.conftest import applied, build, first_plan, run_start

__all__ = ["applied", "build", "first_plan", "run_start"]
