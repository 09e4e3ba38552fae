"""Reads a cluster file: datasheet figures of nodes, GPUs and named networks, checked key by key."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from libra.core.errors import ConfigError, unknown_name
from libra.core.hardware import Cluster, Gpu
from libra.core.registry import Options, parse_options

FOLDER = Path(__file__).parent


class _Table(Options):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _GpuTable(_Table):
    name: str = Field(min_length=1)
    peak_tflops: float = Field(gt=0)
    memory_gb: float = Field(gt=0)
    memory_gb_s: float = Field(gt=0)
    link_gb_s: float = Field(gt=0)


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


def list_clusters() -> tuple[str, ...]:
    """Names of the built-in clusters, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_cluster(name_or_path: str | Path, network: str | None = None) -> Cluster:
    """A built-in cluster by name, or any cluster file (`*.toml`, or a path with a folder).

    `network` chooses one of the file's network profiles instead of its default. Raises `ConfigError` for an unknown
    name, profile or key, for broken TOML (with line and column) and for figures that are missing or not positive.
    """
    path = _find(name_or_path)
    where = str(name_or_path)
    table = _parse(_ClusterTable, _read(path), where)
    gpu = _parse(_GpuTable, table.gpu, f"{where} [gpu]")
    networks = {
        name: _parse(_NetworkTable, values, f"{where} [networks.{name}]") for name, values in table.networks.items()
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


def _parse(table: type[Options], values: dict[str, Any], where: str) -> Any:
    """Unknown keys first: a misspelt key is the cause of a missing one."""
    for key in values:
        if key not in table.model_fields:
            raise unknown_name("key", key, table.model_fields, where=where)
    return parse_options(table, values, where)


def _find(name_or_path: str | Path) -> Path:
    """A built-in name wins over a file of the same name."""
    name = str(name_or_path)
    if name in list_clusters():
        return FOLDER / f"{name}.toml"
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    raise unknown_name("cluster", name, list_clusters(), mend="take one of these, or give the path of a .toml file")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"broken TOML: {error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file", where=str(path), mend="give a cluster file in TOML") from None
    except OSError as error:
        raise ConfigError(f"cannot read the cluster file: {error.strerror}", where=str(path)) from None
