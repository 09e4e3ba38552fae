"""The truth's constants: data in constants.toml, each with unit, source and how it is known; here only their names."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

FOLDS_FILE = Path(__file__).parent / "folds.toml"


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file. `kind` says how the value is known."""

    value: float | tuple[float, ...]
    unit: str
    kind: Literal["measured", "fitted", "assumed"]
    source: str


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Values by name; units, sources and kinds stand in the file. Sensitivity runs replace single values."""

    gemm_overhead_s: float
    gemm_compute_share: float
    gemm_memory_share: float
    gemm_power: float

    decode_overhead_s: float
    decode_per_seq_head_s: float
    decode_memory_share: float
    mixed_reads_per_head: float
    prefill_overhead_s: float
    prefill_tile_share: float
    prefill_key_s: float
    prefill_memory_share: float

    elementwise_kernels: float
    elementwise_overhead_s: float
    elementwise_memory_share: float

    step_overhead_s: float
    step_per_seq_s: float
    api_s_per_request: float
    memory_use_share: float
    activation_reserve_share: float
    eager_layer_s: float
    eager_all_reduce_s: float

    moe_overhead_s: float
    moe_memory_share: float
    moe_compute_share: float
    moe_power: float
    moe_hit_power: float

    custom_link_gb_s: float
    custom_max_bytes: float
    custom_tp2_s: float
    custom_tp2_gb_s: float
    custom_tp4_s: float
    custom_tp4_gb_s: float
    custom_tp8_s: float
    custom_tp8_bytes: tuple[float, ...]
    custom_tp8_table_s: tuple[float, ...]
    nccl_link_gb_s: float
    nccl_latency_s: tuple[float, ...]
    nccl_bus_gb_s: tuple[float, ...]

    train_gemm_factor: float
    train_elementwise_factor: float
    backward_compute_share: float
    triton_backward_share: float
    backward_attention_factor: float
    gradient_bytes: float
    optimizer_traffic_bytes: float
    optimizer_memory_share: float
    gradient_exposed_share: float
    gradient_overlap_share: float
    train_fixed_s: float
    train_memory_share: float

    sync_base_s: float
    sync_gb_s: float
    kv_link_gb_s: float
    kv_base_s: float
    cold_start_s: float
    sleep_s: float
    wake_s: float
    colocated_switch_s: float
    join_bytes: float
    join_network_share: float
    join_restore_s: float
    regroup_base_s: float
    state_bytes: float


@functools.cache
def provenance() -> dict[str, Constant]:
    """Every constant with unit, kind and source, in the file's order."""
    table = tomllib.loads((Path(__file__).parent / "constants.toml").read_text(encoding="utf-8"))
    return msgspec.convert(table, dict[str, Constant])


@functools.cache
def load_constants() -> Constants:
    """The file's values; a name too many or too few there is an error."""
    return msgspec.convert({name: entry.value for name, entry in provenance().items()}, Constants)


@functools.cache
def folds() -> dict[str, dict[str, dict[str, float]]]:
    """Stage -> held-out group -> the constants fitted without it, as `python -m libra.backends.sim.fit` stored them."""
    return tomllib.loads(FOLDS_FILE.read_text(encoding="utf-8"))
