"""Large batches on R2E-Gym: the regime in which the split and moving capacity matter."""

from __future__ import annotations

import pandas as pd

from analysis.names import HOMOGENEOUS, RATE, UNIFORM
from analysis.pairs import interval, mean_text, policies_in, ratio, select, text
from analysis.style import Plot
from paper_figures.sources import Sources

ORDER = (UNIFORM, "areal-static-optimal", HOMOGENEOUS, "pattern-blind", "pattern-cmlfq", "libra-cmlfq", "libra")
CAPTION = (
    "R2E-Gym with 512 trajectories a step instead of 32, one-step-off pipeline. At the batch that the paper's token "
    "rates imply, a step is as long as its last trajectory and no split matters; here both stages are of one size and "
    "the drift moves the bottleneck. areal-static-optimal keeps the plan that is best at the start, best-homogeneous "
    "and libra plan again; libra-cmlfq is Libra planned once."
)
COLUMNS = (
    ("rollout_s", "rollout (s)", ".0f"),
    ("train_s", "training (s)", ".0f"),
    ("bubble_share", "bubble share (0-1)", ".2f"),
    ("transition_share", "transition share (0-1)", ".3f"),
)


def build(sources: Sources) -> Plot:
    """A table: systems with their stage times."""
    title = "Throughput-bound: 512 trajectories a step"
    missing = sources.missing("throughput_bound")
    if missing:
        return Plot("throughput_bound", title, CAPTION, missing=missing)
    table = sources.study("throughput_bound")
    rows = []
    for policy in policies_in(select(table), ORDER):
        ours: dict[str, object] = {"policy": policy, "metric": RATE}
        found = interval(table, **ours)
        row = {
            "system": policy,
            "seeds": str(found.n) if found else "0",
            "throughput (token/s)": text(found, ",.0f"),
        }
        for against in (UNIFORM, HOMOGENEOUS):
            other = ratio(table, ours, {**ours, "policy": against})
            row[f"ratio to {against} (x)"] = "1" if policy == against else text(other, ".3f")
        for metric, name, digits in COLUMNS:
            row[name] = mean_text(interval(table, **{**ours, "metric": metric}), digits)
        rows.append(row)
    return Plot("throughput_bound", title, CAPTION, table=pd.DataFrame(rows))
