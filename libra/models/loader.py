"""Reads a model file: a published transformer shape, checked key by key. Nothing is derived from another figure."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from libra.core.errors import ConfigError, unknown_name
from libra.core.hardware import Model
from libra.core.registry import Options, parse_options

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
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def load_model(name_or_path: str | Path) -> Model:
    """A built-in model by name, or any model file (`*.toml`, or a path with a folder).

    Raises `ConfigError` for an unknown name or key, broken TOML (with line and column), figures that are missing or
    not positive, and shapes that cannot exist.
    """
    where = str(name_or_path)
    model = Model(**_parse(_ModelTable, _read(_find(name_or_path)), where).model_dump())
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


def _parse(table: type[Options], values: dict[str, Any], where: str) -> Any:
    """Unknown keys first: a misspelt key is the cause of a missing one."""
    for key in values:
        if key not in table.model_fields:
            raise unknown_name("key", key, table.model_fields, where=where)
    return parse_options(table, values, where)


def _find(name_or_path: str | Path) -> Path:
    """A built-in name wins over a file of the same name."""
    name = str(name_or_path)
    if name in list_models():
        return FOLDER / f"{name}.toml"
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    raise unknown_name("model", name, list_models(), mend="take one of these, or give the path of a .toml file")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"broken TOML: {error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file", where=str(path), mend="give a model file in TOML") from None
    except OSError as error:
        raise ConfigError(f"cannot read the model file: {error.strerror}", where=str(path)) from None
