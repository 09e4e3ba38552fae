"""Seeds by name: equal names give equal draws in every process, any other name gives others."""

from __future__ import annotations

import subprocess
import sys

from libra.core.rng import seed_of


def test_names_and_not_their_concatenation_decide() -> None:
    names = [("a", 1), ("a", 2), ("b", 1), ("a1",), ("a", "1", ""), ("a", 11), ("a1", 1)]
    assert len({seed_of(*each) for each in names}) == len(names)


def test_another_process_with_another_hash_seed_agrees() -> None:
    code = "from libra.core.rng import seed_of; print(seed_of('r2e-gym', 3))"
    env = {"PYTHONHASHSEED": "77"}
    printed = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert int(printed) == seed_of("r2e-gym", 3)
