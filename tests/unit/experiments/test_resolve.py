"""Names in cells: every mistake is found before anything runs, and the files behind names are part of the identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from experiments.resolve import Resolver, pipeline_of
from libra.core.errors import ConfigError
from libra.core.events import PipelineSpec
from libra.core.registry import PolicySpec, Registry
from libra.results.cell import Cell

MakeCell = Callable[..., Cell]


def test_a_good_cell_resolves(registry: Registry, make_cell: MakeCell) -> None:
    setup = Resolver(registry).setup(make_cell(crash_at=3))
    assert (setup.cluster.name, setup.model.name, setup.policy.name) == ("a800x8", "qwen3-4b", "round-robin")
    assert setup.pipeline == PipelineSpec()
    assert setup.sim_options.check is True
    assert setup.build_workload().num_steps == 3
    assert setup.build_policy() is not setup.build_policy()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": "round-robbin"}, "did you mean 'round-robin'"),
        ({"workload": "fixed-lenght"}, "did you mean 'fixed-length'"),
        ({"cluster": "a800x9"}, "did you mean 'a800x"),
        ({"model": "qwen3-4c"}, "did you mean 'qwen3-"),
        ({"backend": "simm"}, "did you mean 'sim'"),
        ({"overrides": (("policy.crash", 1),)}, "did you mean 'crash_at'"),
        ({"overrides": (("workload.batches", 1),)}, "did you mean 'batch'"),
        ({"overrides": (("sim.chek", 1),)}, "did you mean 'check'"),
        ({"overrides": (("pipeline.kind", "asink"),)}, "asink"),
        ({"overrides": (("pipeline.staleness", -1),)}, "not negative"),
        ({"overrides": (("cluster.network", "infiniband"),)}, "unknown network profile"),
        ({"workload": "trace:absent.parquet"}, "No such file"),
        ({"cluster": "absent.toml"}, "No such file"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    registry: Registry, make_cell: MakeCell, changes: dict[str, Any], words: str
) -> None:
    resolver, cell = Resolver(registry), msgspec.structs.replace(make_cell(), **changes)
    if "trace" in changes.get("workload", ""):
        cell = msgspec.structs.replace(cell, overrides=())
    with pytest.raises(ConfigError, match=words):
        resolver.setup(cell)
        resolver.code(cell)


def test_files_of_the_users_own_are_part_of_the_identity(
    plugin: Path, tmp_path: Path, make_cell: MakeCell, project_root: Path
) -> None:
    copy = tmp_path / "mine.py"
    copy.write_text(plugin.read_text())
    first = Resolver(Registry((copy,))).code(make_cell())
    assert first == Resolver(Registry((plugin,))).code(make_cell())
    copy.write_text(plugin.read_text() + "# changed\n")
    assert Resolver(Registry((copy,))).code(make_cell()) != first
    trace, cluster = tmp_path / "t.parquet", tmp_path / "c.toml"
    text = (project_root / "libra" / "clusters" / "a800x8.toml").read_text()
    cluster.write_text(text.replace("[gpu]", '[gpu]\nmeasured = "points.csv"'))
    (tmp_path / "points.csv").write_text("kind,sizes,time_s,source\ngemm,m=1 n=1 k=1,1e-5,made up\n")
    cell = Cell.make("s", f"trace:{trace}", str(cluster), "qwen3-4b", "round-robin")
    assert Resolver(Registry((plugin,))).inputs(cell) == (plugin, trace, cluster, tmp_path / "points.csv")


def test_a_plugin_folder_counts_as_a_whole(plugin: Path, make_cell: MakeCell) -> None:
    assert Resolver(Registry((plugin.parent,))).inputs(make_cell()) == (plugin.parent,)


@pytest.mark.parametrize(
    ("pinned", "overrides", "expected"),
    [
        (None, {}, PipelineSpec("barrier", 1, 0)),
        (None, {"pipeline.kind": "async", "pipeline.staleness": 4}, PipelineSpec("async", 4, 0)),
        (None, {"pipeline.kind": "colocated", "pipeline.staleness": 4}, PipelineSpec("colocated", 0, 0)),
        ("colocated", {"pipeline.kind": "async", "pipeline.in_flight_cap": 9}, PipelineSpec("colocated", 0, 0)),
        ("async", {"pipeline.kind": "async", "pipeline.in_flight_cap": 9}, PipelineSpec("async", 1, 9)),
        ("barrier", {"pipeline.kind": "async", "pipeline.staleness": 4}, PipelineSpec("barrier", 1, 0)),
    ],
)
def test_a_pinned_pipeline_wins(pinned: Any, overrides: dict[str, Any], expected: PipelineSpec) -> None:
    cell = Cell.make("s", "w", "c", "m", "p", overrides=overrides)
    spec = PolicySpec("p", "", lambda context: None, pipeline=pinned)  # type: ignore[arg-type,return-value]
    assert pipeline_of(cell, spec) == expected
