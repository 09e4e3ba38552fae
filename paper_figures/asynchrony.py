"""Asynchronous pipelines: throughput by staleness bound and in-flight cap."""

from __future__ import annotations

import pandas as pd

from analysis.names import RATE, UNIFORM, WORKLOAD_TITLES
from analysis.pairs import interval, mean_text, policies_in, ratio, select, text
from analysis.style import Plot
from paper_figures.sources import SYSTEM_ORDER, Sources, titled

CAPTION = (
    "The same systems with asynchronous rollout: trajectories may be trained up to `staleness` policy versions "
    "after they began, and `in_flight_cap` bounds how many run at a time (0: no cap). Compare the token/s with "
    "those of the barrier pipeline above."
)


def build(sources: Sources) -> Plot:
    """A table: systems by workload and pipeline."""
    title = "Asynchronous pipelines"
    missing = sources.missing("asynchrony")
    if missing:
        return Plot("asynchrony", title, CAPTION, missing=missing)
    table = sources.study("asynchrony")
    rows = []
    for workload in titled(select(table)["workload"]):
        for variant in sorted(set(select(table, workload=workload)["variant"])):
            for policy in policies_in(table, SYSTEM_ORDER, workload=workload, variant=variant):
                ours: dict[str, object] = {"workload": workload, "variant": variant, "policy": policy, "metric": RATE}
                rows.append(_row(table, ours))
    return Plot("asynchrony", title, CAPTION, table=pd.DataFrame(rows))


def _row(table: pd.DataFrame, ours: dict[str, object]) -> dict[str, str]:
    found = interval(table, **ours)
    to_uniform = ratio(table, ours, {**ours, "policy": UNIFORM})
    return {
        "workload": WORKLOAD_TITLES[str(ours["workload"])],
        "pipeline": str(ours["variant"]).replace("pipeline.", "").replace("kind=async, ", ""),
        "system": str(ours["policy"]),
        "seeds": str(found.n) if found else "0",
        "throughput (token/s)": text(found, ",.0f"),
        f"ratio to {UNIFORM} (x)": "1" if ours["policy"] == UNIFORM else text(to_uniform, ".3f"),
        "largest staleness (versions)": mean_text(interval(table, **{**ours, "metric": "staleness_max"}), ".2g"),
        "bubble share (0-1)": mean_text(interval(table, **{**ours, "metric": "bubble_share"}), ".2f"),
    }
