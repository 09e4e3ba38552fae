"""Sensitivity of the main comparison to what the paper leaves open: tool time, network, tool failures that lengthen."""

from __future__ import annotations

import pandas as pd

from analysis.names import HOMOGENEOUS, RATE, UNIFORM
from analysis.pairs import interval, policies_in, ratio, select, text
from analysis.style import Plot
from paper_figures.sources import Sources

ORDER = (UNIFORM, "pattern-cmlfq", HOMOGENEOUS, "libra")
CAPTION = "R2E-Gym with one assumption changed at a time; ratios are paired by seed."


def build(sources: Sources) -> Plot:
    """A table: systems by assumption."""
    title = "Sensitivity to what the paper leaves open"
    missing = sources.missing("sensitivity")
    if missing:
        return Plot("sensitivity", title, CAPTION, missing=missing)
    table = sources.study("sensitivity")
    rows = []
    for variant in sorted(set(select(table)["variant"])):
        for policy in policies_in(table, ORDER, variant=variant):
            ours: dict[str, object] = {"variant": variant, "policy": policy, "metric": RATE}
            found = interval(table, **ours)
            row = {
                "assumption": variant,
                "system": policy,
                "seeds": str(found.n) if found else "0",
                "throughput (token/s)": text(found, ",.0f"),
            }
            for against in (UNIFORM, HOMOGENEOUS):
                other = ratio(table, ours, {**ours, "policy": against})
                row[f"ratio to {against} (x)"] = "1" if policy == against else text(other, ".3f")
            rows.append(row)
    return Plot("sensitivity", title, CAPTION, table=pd.DataFrame(rows))
