"""Reads a model file: a published transformer shape, checked key by key. Nothing is derived from another figure."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, Field

from libra.core.errors import ConfigError
from libra.core.hardware import Model
from libra.core.registry import Options, parse_options
from libra.core.toml_files import built_in, find_toml, read_toml

FOLDER = Path(__file__).parent


class _ModelTable(Options):
    """`head_dim` is never hidden / heads: Qwen3-4B and 30B-A3B have 128 all the same."""

    model_config = ConfigDict(strict=True)

    name: str = Field(min_length=1)
    num_layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    ffn: int = Field(gt=0)
    vocab: int = Field(gt=0)
    max_context_tok: int = Field(gt=0)
    tied_embeddings: bool = False
    num_experts: int = Field(default=0, ge=0)
    experts_per_tok: int = Field(default=0, ge=0)
    source: str = ""


def list_models() -> tuple[str, ...]:
    """Names of the built-in models, sorted."""
    return built_in(FOLDER)


def load_model(name_or_path: str | Path) -> Model:
    """A built-in model by name, or any model file (`*.toml`, or a path with a folder).

    Raises `ConfigError` for an unknown name or key, broken TOML (with line and column), figures that are missing or
    not positive, and shapes that cannot exist.
    """
    where = str(name_or_path)
    model = Model(
        **parse_options(_ModelTable, read_toml("model", find_toml("model", name_or_path, FOLDER)), where).model_dump()
    )
    if model.num_heads % model.num_kv_heads:
        raise ConfigError(
            "num_heads is no multiple of num_kv_heads", where=where, value=(model.num_heads, model.num_kv_heads)
        )
    if not (0 < model.experts_per_tok <= model.num_experts or model.experts_per_tok == model.num_experts == 0):
        raise ConfigError(
            "experts_per_tok must lie between 1 and num_experts, or both be 0",
            where=where,
            value=(model.experts_per_tok, model.num_experts),
        )
    return model
