"""Built-in clusters against their data sheets, network profiles, and what a user's own file may get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.clusters import list_clusters, load_cluster
from libra.clusters.loader import FOLDER
from libra.core.errors import ConfigError


def test_built_in_clusters() -> None:
    assert list_clusters() == ("a800x48", "a800x8", "cpu2", "cpu3", "h100x64")
    assert all(load_cluster(name).name == name for name in list_clusters())
    assert [load_cluster(name).num_gpus for name in list_clusters()] == [48, 8, 2, 3, 64]


def test_a800_is_two_thirds_of_a100_in_nvlink_only() -> None:
    gpu = load_cluster("a800x48").gpu
    assert (gpu.peak_tflops, gpu.memory_gb_s, gpu.memory_gb) == (312.0, 2039.0, 80.0)
    assert gpu.link_gb_s == pytest.approx(600 / 2 * 2 / 3)


@pytest.mark.parametrize(("network", "gb_s"), [(None, 22.0), ("nic15", 15.0), ("nic22", 22.0), ("nic176", 176.0)])
def test_network_profiles(network: str | None, gb_s: float) -> None:
    cluster = load_cluster("a800x48", network)
    assert (cluster.network, cluster.network_gb_s) == (network or "nic22", gb_s)


def test_one_nic_is_below_its_line_rate() -> None:
    """200 Gb/s is 25 GB/s, not 100."""
    assert load_cluster("a800x48").network_gb_s < 200 / 8


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'a800x48'"):
        load_cluster("a800-48")
    with pytest.raises(ConfigError, match=r"unknown network profile \(got 'nic23'\)"):
        load_cluster("a800x48", "nic23")


def _write(folder: Path, old: str, new: str) -> Path:
    path = folder / "mine.toml"
    path.write_text((FOLDER / "a800x48.toml").read_text().replace(old, new, 1))
    return path


def test_own_file(tmp_path: Path) -> None:
    path = _write(tmp_path, "num_nodes = 6", "num_nodes = 7")
    assert load_cluster(str(path), "nic15").num_gpus == 56


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_nodes", "num_node", r"unknown key \(got 'num_node'\)\n  did you mean 'num_nodes'"),
        ("memory_gb =", "memory_gbs =", r"\[gpu\]: unknown key \(got 'memory_gbs'\)\n  did you mean 'memory_gb"),
        ("gb_s = 15.0", "gbs = 15.0", r"\[networks.nic15\]: unknown key \(got 'gbs'\)\n  did you mean 'gb_s'"),
        ("num_nodes = 6", "num_nodes = 0", "greater than 0"),
        ("peak_tflops = 312.0", "peak_tflops = nan", "peak_tflops"),
        ("peak_tflops = 312.0", "peak_tflops = inf", "peak_tflops"),
        ("num_nodes = 6", 'num_nodes = "6"', "valid integer"),
        ('default_network = "nic22"', 'default_network = "nic2"', "unknown network profile"),
        ("num_nodes = 6", "num_nodes = = 6", "broken TOML: .*line 3"),
    ],
)
def test_what_a_file_may_get_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_cluster(_write(tmp_path, old, new))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_cluster(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_cluster(binary)
