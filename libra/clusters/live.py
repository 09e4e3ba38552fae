"""The `[live]` section of a cluster file: what a real run on it needs to know beyond the datasheet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from libra.clusters.loader import FOLDER
from libra.core.errors import ConfigError
from libra.core.registry import Options, parse_options
from libra.core.toml_files import find_toml, read_toml

MEGATRON_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}


class LiveCluster(Options):
    """How engines and trainer run there."""

    model_config = ConfigDict(strict=True)

    platform: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16"]
    """Of the engines' and the trainer's arithmetic."""
    weight_transfer: Literal["gloo", "nccl"]
    """Backend that carries new weights from the trainer to the engines."""
    attention: Literal["sdpa", "flash_attention_2"]
    """The attention kernel of the FSDP2 trainer."""
    trainer: Literal["fsdp2", "megatron"] = "fsdp2"
    """verl's training engine. `megatron` takes tensor and pipeline parallelism from the plan; `fsdp2` shards over all
    training devices. Megatron trains in float32 on a CPU and in bfloat16 on a GPU."""
    max_num_seqs: int = Field(256, gt=0)
    """Sequences that an engine runs at once."""
    kv_cache_mb: int = Field(0, ge=0)
    """KV memory of an engine; 0 leaves it to vLLM's share of the device."""
    micro_batch_tok: int = Field(16_384, gt=0)
    """Tokens that one training device takes at once."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of every process of a run."""


def load_live(name_or_path: str | Path) -> LiveCluster:
    """Raises `ConfigError` for a cluster that has no such section, or for what is wrong in it."""
    where = str(name_or_path)
    section = read_toml("cluster", find_toml("cluster", name_or_path, FOLDER)).get("live")
    if section is None:
        raise ConfigError("this cluster can only be simulated", where=f"cluster {where}",
                          mend="add a [live] section: platform, dtype, weight_transfer, attention")  # fmt: skip
    found = parse_options(LiveCluster, section, f"{where} [live]")
    dtype = MEGATRON_DTYPES[found.platform]
    if found.trainer == "megatron" and found.dtype != dtype:
        raise ConfigError(f"verl's Megatron engine trains in {dtype} on platform {found.platform}",
                          where=f"{where} [live] dtype", value=found.dtype, allowed=(dtype,))  # fmt: skip
    return found
