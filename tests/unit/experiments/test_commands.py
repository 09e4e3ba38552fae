"""What the command line tells beside its tables."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from experiments.commands.data import replay
from experiments.commands.look import show
from experiments.commands.output import warnings_of
from experiments.commands.runs import Request, study_cells
from experiments.launch import launch
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store


def test_what_a_run_had_to_assume_is_told(
    store: Store, registry: Registry, make_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    cell = msgspec.structs.replace(make_cell(), cluster="h100x64")
    launch([cell], store, registry)
    (folder,) = (store.root / "cells").iterdir()
    (note,) = warnings_of(folder)
    assert "H100-SXM5-80GB" in note
    show(folder.name[:8], store.root, as_json=False)
    assert f"note: {note}" in capsys.readouterr().out


def test_an_unfinished_run_has_nothing_to_tell(tmp_path: Path) -> None:
    assert warnings_of(tmp_path) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("list", "polcy"), "did you mean 'policy'"),
        (("list", "study", "smoke"), "only a policy or a workload has options"),
        (("run", "smoke", "--only", ""), "an empty selector"),
        (("run", "smoke", "--trace", "/nope"), "study smoke takes no traces"),
        (("run", "traces", "--trace", __file__), "no canonical trace"),
        (("run", "traces", "--trace", "/nope.jsonl.gz"), "no such file"),
        (("run", "smoke", "--set", "foo=1"), "workload.OPTION"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.cli", *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_plugin_policy_runs_beside_those_of_a_study(plugin: Path, store: Store) -> None:
    request = Request("smoke", store.root, seeds=2, plugins=(plugin,), policies=("round-robin",))
    cells = study_cells(request, Registry((plugin,)))
    assert Counter(cell.policy for cell in cells) == {"libra": 4, "verl-static-uniform": 4, "round-robin": 4}
    assert len(set(cells)) == 12
    with pytest.raises(ConfigError, match="did you mean 'round-robin'"):
        study_cells(dataclasses.replace(request, policies=("round-robn",)), Registry((plugin,)))


def test_a_failed_cell_shows_its_traceback(
    store: Store, registry: Registry, make_cell: Callable[..., Cell], capsys: pytest.CaptureFixture[str]
) -> None:
    launch([make_cell(crash_at=1)], store, registry)
    (folder,) = (store.root / "cells").iterdir()
    show(folder.name, store.root, as_json=False)
    printed = capsys.readouterr().out
    assert "Traceback (most recent call last)" in printed and "metrics" not in printed


def test_replay_of_a_log_that_was_cut_off_is_no_success(
    store: Store, plugin: Path, registry: Registry, make_cell: Callable[..., Cell]
) -> None:
    launch([make_cell()], store, registry)
    (folder,) = (store.root / "cells").iterdir()
    replay(folder.name, store.root, (plugin,), as_json=False)
    with pytest.raises(ConfigError, match="not installed"):
        replay(folder.name, store.root, (), as_json=False)
    log = folder / "events.jsonl.zst"
    log.write_bytes(log.read_bytes()[:200])
    with pytest.raises(StoreError, match="cut off"):
        replay(folder.name, store.root, (plugin,), as_json=False)
