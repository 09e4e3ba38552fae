"""Measured points that calibrate and judge the timing truth: CSV tables, and where each comes from."""

from __future__ import annotations

import csv
import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from libra.core.hardware import Model
from libra.models import load_model

Stage = Literal["operator", "serving", "training", "blind"]
_HERE = Path(__file__).parent


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Origin of one table."""

    stage: Stage
    what: str
    source: str
    licence: str


@functools.cache
def sources() -> dict[str, Source]:
    """Tables by name, operators first."""
    text = (_HERE / "sources.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, Source])


@functools.cache
def rows(table: str) -> Sequence[dict[str, str]]:
    """A table's rows, text as it stands there; units are in the column names."""
    with (_HERE / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@functools.cache
def measured_model(name: str) -> Model:
    """Shape of a model that was measured; those that the product does not ship stand in `models.csv`.

    MPT has a feed-forward of 4 x hidden without a gate: as many products as a gated one of 8/3 x hidden. GLM-4.5-Air's
    shared expert counts as a ninth of 129, and its one dense layer as the others.
    """
    for row in rows("models"):
        if row["model"] == name:
            layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, experts, experts_per_tok = (
                int(row[key])
                for key in ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied", "experts",
                            "experts_per_tok")
            )  # fmt: skip
            return Model(name, layers, hidden, heads, kv_heads, head_dim, ffn, vocab, 1 << 17, bool(tied), experts,
                         experts_per_tok)  # fmt: skip
    return load_model(name)
