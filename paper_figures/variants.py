"""Overrides of cells as columns: `workload.batch=16, workload.length_tok=1024` becomes two numeric columns."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes


def overrides(variant: str) -> dict[str, str]:
    """`a=1, b=x` -> {"a": "1", "b": "x"}."""
    return dict(part.split("=", 1) for part in variant.split(", ") if "=" in part)


def with_overrides(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with one column per override key (numeric where all values are), missing where a cell lacks it."""
    known = {
        "policy.num_train_gpus",
        "workload.batch",
        "workload.length_tok",
        *(key for variant in set(rows["variant"]) for key in overrides(variant)),
    }
    made = rows.copy()
    for key in sorted(known):
        column = made["variant"].map(lambda variant, key=key: overrides(variant).get(key))
        numbers = pd.to_numeric(column, errors="coerce")
        made[key] = numbers if numbers.notna().sum() == column.notna().sum() else column
    return made


def label_lengths(axes: Axes, lengths_tok: Sequence[float]) -> None:
    """Ticks of a logarithmic axis at the lengths that were run: 1K, 2K, ... tokens."""
    axes.set_xticks(list(lengths_tok), [f"{length / 1024:g}K" for length in lengths_tok])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("sequence length (token)")


def refuse_two_values(rows: pd.DataFrame, by: Sequence[str]) -> None:
    """Raises ValueError where a seed has two values of one setting, as cells with another `--set` have: their mean
    would be of two worlds."""
    twice = rows.duplicated([*by, "seed"], keep=False)
    if twice.any():
        raise ValueError(f"two values of one seed in {sorted(set(rows[twice]['variant']))}")
