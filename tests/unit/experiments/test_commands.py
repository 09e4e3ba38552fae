"""What the command line tells beside its tables."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.cli import FORMATS, main
from experiments.commands.data import replay
from experiments.commands.look import show
from experiments.commands.output import warnings_of
from experiments.commands.runs import Request, study_cells
from experiments.launch import launch
from libra.core.errors import ConfigError, StoreError
from libra.core.registry import Registry
from libra.results.cell import Cell
from libra.results.store import Store
from libra.workloads.importers import importers

UNMEASURED = """name = "h20x8"
num_nodes = 1
gpus_per_node = 8
default_network = "none"
gpu = {name = "H20-SXM5-96GB", peak_tflops = 148.0, memory_gb = 96.0, memory_gb_s = 4000.0, link_gb_s = 450.0}
networks.none.gb_s = 50.0
"""


def test_a_warning_is_kept_with_the_cell_and_told_once_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "h20.toml").write_text(UNMEASURED)
    store = tmp_path / "runs"
    command = f"run smoke --steps 2 --launcher inline --store {store} --set cluster={tmp_path / 'h20.toml'}"
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--set", "model=qwen3-4b"])
    assert ended.value.code == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: GPU H20-SXM5-96GB")]
    folders = list((store / "cells").iterdir())
    assert len(folders) > 1 and len(notes) == 1
    assert notes[0].removeprefix("note: ") in warnings_of(folders[0])
    show(folders[0].name, store, as_json=False)
    assert notes[0] in capsys.readouterr().out


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


def test_what_preparing_data_would_do_is_told_without_doing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["data", "prepare", "dapo-math", "--out", str(tmp_path / "data"), "--dry-run"])
    assert ended.value.code == 0
    source = "BytedTsinghua-SIA/DAPO-Math-17k: data/dapo-math-17k.parquet"
    assert capsys.readouterr().out.splitlines() == [f"train.jsonl <- {source}", f"held_out.jsonl <- {source}"]
    assert not (tmp_path / "data").exists()
    with pytest.raises(SystemExit) as ended:
        main(["data", "prepare", "r2e-gum", "--out", str(tmp_path / "data")])
    assert ended.value.code == 2
    assert "unknown data set (got 'r2e-gum')" in capsys.readouterr().err


def test_import_names_every_format_and_the_nearest_to_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = FORMATS.partition(": ")[2].rstrip(".").split(", ")
    assert told == list(importers())
    with pytest.raises(SystemExit):
        main(["import", "slim", str(tmp_path), "--out", str(tmp_path / "t.jsonl.gz")])
    assert "did you mean 'slime'?" in " ".join(capsys.readouterr().err.split())
