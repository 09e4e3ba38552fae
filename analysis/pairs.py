"""Values by seed out of the tidy metrics table, and summaries with intervals for figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.names import REAL_INPUT
from analysis.statistics import Estimate, mean_interval, paired_ratio


def select(table: pd.DataFrame, **where: object) -> pd.DataFrame:
    """Finished rows whose columns equal the given values."""
    chosen = np.ones(len(table), dtype=bool)
    for column, value in {"status": "done", **where}.items():
        chosen &= table[column].to_numpy() == value
    return table[chosen]


def real_input(table: pd.DataFrame, *, wanted: bool = True) -> pd.DataFrame:
    """Rows of workloads that replay traces or recordings; with `wanted=False` all others."""
    return table[table["workload"].str.startswith(REAL_INPUT).to_numpy(bool) == wanted]


def by_seed(table: pd.DataFrame, **where: object) -> dict[int, float]:
    """Value of one metric by seed; name the metric among the filters. Empty where nothing has finished.

    Raises ValueError when the filters leave two values of one seed: taking either would be arbitrary.
    """
    rows = select(table, **where)
    if rows["seed"].duplicated().any():
        kinds = {column: sorted(set(rows[column])) for column in ("workload", "policy", "variant", "model", "metric")}
        raise ValueError(f"two values of one seed: {kinds}")
    return {int(seed): float(value) for seed, value in zip(rows["seed"], rows["value"], strict=True)}


def interval(table: pd.DataFrame, **where: object) -> Estimate | None:
    """Mean over seeds with its interval, or None without data."""
    values = by_seed(table, **where)
    return mean_interval(values) if values else None


def ratio(table: pd.DataFrame, ours: Mapping[str, object], theirs: Mapping[str, object]) -> Estimate | None:
    """Paired ratio of two selections, or None when they share no seed or a value is not positive."""
    above, below = by_seed(table, **ours), by_seed(table, **theirs)
    if not above.keys() & below.keys() or min(*above.values(), *below.values()) <= 0:
        return None
    return paired_ratio(above, below)


def policies_in(table: pd.DataFrame, order: Sequence[str], **where: object) -> list[str]:
    """Policies that have finished cells, in `order` first and then by name."""
    there = set(select(table, **where)["policy"])
    return [name for name in order if name in there] + sorted(there - set(order))


def text(found: Estimate | None, digits: str = ".3g", suffix: str = "") -> str:
    """`1.21 [1.15, 1.27]`, without brackets for a single seed, "" without data."""
    if found is None or found.low is None or found.high is None:
        return mean_text(found, digits, suffix)
    return f"{found.value:{digits}}{suffix} [{found.low:{digits}}, {found.high:{digits}}]"


def mean_text(found: Estimate | None, digits: str = ".3g", suffix: str = "") -> str:
    """The value alone, "" without data."""
    return "" if found is None else f"{found.value:{digits}}{suffix}"
