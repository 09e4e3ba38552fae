"""`libra validate --gpu`: errors on a GPU's own table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.commands.check import validate_gpu
from libra.core.errors import ConfigError


def test_the_errors_of_a_table_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    validate_gpu("H100-SXM5-80GB", as_json=False)
    out = capsys.readouterr().out
    assert "H100-SXM5-80GB: relative error of the predicted time" in out
    assert "taken from A100: elementwise_overhead_s, elementwise_memory_share, step_overhead_s" in out
    validate_gpu("H100-SXM5-80GB", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert {each["kind"] for each in found["errors"]} >= {"gemm", "moe", "gpustack_blind"}
    assert found["constants"]["gemm_power"]["source"] == "H100-SXM5-80GB.csv: 100 gemm points"


def test_a_gpu_without_a_table_is_told(project_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown GPU with a table of measured points \(got 'B300'\)"):
        validate_gpu("B300", as_json=False)
    with pytest.raises(ConfigError, match=r"its measurements calibrate all others \(got 'A800-SXM4-80GB'\)"):
        validate_gpu("A800-SXM4-80GB", as_json=False)
    with pytest.raises(ConfigError, match=r"its GPU has no table of measured points \(got 'A800-SXM4-80GB'\)"):
        validate_gpu(str(project_root / "libra" / "clusters" / "a800x8.toml"), as_json=False)
