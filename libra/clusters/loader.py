"""Reads a cluster file: datasheet figures of nodes, GPUs and named networks, checked key by key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from libra.core.errors import unknown_name
from libra.core.hardware import Cluster, Gpu
from libra.core.registry import Options, parse_options
from libra.core.toml_files import built_in, find_toml, read_toml

FOLDER = Path(__file__).parent


class _Table(Options):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _GpuTable(_Table):
    name: str = Field(min_length=1)
    peak_tflops: float = Field(gt=0)
    memory_gb: float = Field(gt=0)
    memory_gb_s: float = Field(gt=0)
    link_gb_s: float = Field(gt=0)
    measured: str = ""


class _NetworkTable(_Table):
    gb_s: float = Field(gt=0)
    source: str = ""


class _ClusterTable(_Table):
    name: str = Field(min_length=1)
    num_nodes: int = Field(gt=0)
    gpus_per_node: int = Field(gt=0)
    default_network: str
    gpu: dict[str, Any]
    networks: dict[str, dict[str, Any]] = Field(min_length=1)
    source: str = ""
    live: dict[str, Any] = Field(default_factory=dict)
    """Read by `clusters.live`."""


def list_clusters() -> tuple[str, ...]:
    """Names of the built-in clusters, sorted."""
    return built_in(FOLDER)


def load_cluster(name_or_path: str | Path, network: str | None = None) -> Cluster:
    """A built-in cluster by name, or any cluster file (`*.toml`, or a path with a folder).

    `network` chooses one of the file's network profiles instead of its default. Raises `ConfigError` for an unknown
    name, profile or key, for broken TOML (with line and column) and for figures that are missing or not positive.
    The GPU's `measured` is a path from the file's folder.
    """
    where, path = str(name_or_path), find_toml("cluster", name_or_path, FOLDER)
    table = parse_options(_ClusterTable, read_toml("cluster", path), where)
    gpu = parse_options(_GpuTable, table.gpu, f"{where} [gpu]")
    if gpu.measured:
        gpu = gpu.model_copy(update={"measured": str(path.parent / gpu.measured)})
    networks = {
        name: parse_options(_NetworkTable, values, f"{where} [networks.{name}]")
        for name, values in table.networks.items()
    }
    chosen = table.default_network if network is None else network
    if chosen not in networks:
        raise unknown_name("network profile", chosen, networks, where=where)
    return Cluster(
        name=table.name,
        num_nodes=table.num_nodes,
        gpus_per_node=table.gpus_per_node,
        gpu=Gpu(**gpu.model_dump()),
        network=chosen,
        network_gb_s=networks[chosen].gb_s,
        source="; ".join(part for part in (table.source, networks[chosen].source) if part),
    )
