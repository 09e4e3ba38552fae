"""`python -m libra.backends.live.tiny`: a policy from a workload's name, made once, with its held-out success."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs the extra `live`")

from libra.backends.live.tiny.__main__ import main
from libra.backends.live.tiny.settings import SETTINGS
from libra.core.registry import Registry

LONG_WARMUP = 10_000
"""So long that a test would notice a warm-up that should have been refused."""


def test_a_policy_is_made_tried_and_found_again(tmp_path, capsys) -> None:
    pytest.importorskip("bm25s", reason="passages are found by bm25s")
    folder = tmp_path / "policy"
    command = ["search-r1", str(folder), "--seed", "3", "--steps", "200", "--tasks", "32"]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "warm-up step 200/200: loss" in first
    shares = re.findall(r"held-out success, (sampled|greedy): ([01]\.\d{3}) of 32 tasks", first)
    assert [how for how, _ in shares] == ["sampled", "greedy"]
    assert float(shares[1][1]) > 0  # the built-in heads copy already; a random model is never right
    assert main([*command[:-1], "0"]) == 0
    assert capsys.readouterr().out == f"policy {_fingerprint(folder)} is there already: {folder}\n"


def _fingerprint(folder) -> str:
    found = re.search(r'"fingerprint": "([0-9a-f]{16})"', (folder / "policy.json").read_text())
    assert found is not None
    return found[1]


def test_what_cannot_be_made_is_said_in_a_line(tmp_path, capsys) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["nonesuch", str(tmp_path / "p")]) == 2
    assert "unknown workload (got 'nonesuch')" in capsys.readouterr().err
    assert main(["dapo-math", str(tmp_path), "--steps", str(LONG_WARMUP)]) == 2
    assert f"{tmp_path}: holds something that is no tiny policy" in capsys.readouterr().err
    assert main(["dapo-math", str(tmp_path / "p"), "--steps", "0"]) == 2
    assert "at least one step (got 0)" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_every_workload_with_an_environment_has_settings() -> None:
    specs = Registry().all("workload")
    assert set(SETTINGS) == {name for name, spec in specs.items() if spec.environment is not None}


def test_help_waits_for_no_torch() -> None:
    code = (
        "import sys\nfrom libra.backends.live.tiny.__main__ import main\n"
        "try:\n    main(['--help'])\nfinally:\n    print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "WORKLOAD OUT" in done.stdout
    assert done.stdout.splitlines()[-1] == "False"
