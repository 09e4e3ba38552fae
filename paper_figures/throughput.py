"""Throughput per workload and system (the paper's Fig. 7, upper row), ours with intervals and every seed."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt

from analysis.names import HOMOGENEOUS, LIBRA, MAIN_STUDIES, RATE, STATIC_OPTIMAL, UNIFORM, WORKLOAD_TITLES
from analysis.pairs import interval, mean_text, policies_in, ratio, select, text
from analysis.style import WIDTH_IN, Plot, marks_legend, paper_marker, seed_bars
from paper_figures.sources import SYSTEM_ORDER, Sources, titled
from paper_figures.worlds import holds

PAPER: dict[tuple[str, str], str] = {
    ("search-r1", "libra"): "search-libra",
    ("search-r1", "areal-static-optimal"): "search-areal",
    ("search-r1", "verl-greedy-heuristic"): "search-greedy",
    ("r2e-gym", "libra"): "ablation-libra",
    ("r2e-gym", UNIFORM): "ablation-base",
}
"""Claims with a known level. verl-colocated has two readings on every workload, and is left blank."""

CAPTION = (
    "Prompt, generated and observed tokens per second of the whole cluster, steady state. Bars: mean over seeds; "
    "whiskers: 95 % t interval; dots: every seed. Hollow diamonds: the paper, where a number is known. Its unit, "
    "cluster or one GPU, is not stated and is read as cluster; two of the diamonds are 2700 token/s over the "
    "reported +63 % and +80 %."
)
MORE = {
    "step_s": ("step (s)", ",.0f"),
    "rollout_s": ("rollout (s)", ",.0f"),
    "train_s": ("training (s)", ",.0f"),
    "tail_share_makespan": ("tail share of makespan (0-1)", ".2f"),
    "bubble_share": ("bubble share (0-1)", ".2f"),
}


def build(sources: Sources) -> Plot:
    """Panels by workload and a table of paired ratios."""
    title = "Throughput by workload and system"
    study = sources.first_of(MAIN_STUDIES)
    missing = sources.missing(study)
    if missing:
        return Plot("throughput", title, CAPTION, missing=missing)
    table = sources.study(study)
    workloads = titled(select(table)["workload"])
    names = policies_in(table, SYSTEM_ORDER)
    figure, axes = plt.subplots(
        1, len(workloads), figsize=(WIDTH_IN, 0.9 + 0.34 * len(names)), squeeze=False, sharey=True
    )
    for panel, workload in zip(axes[0], workloads, strict=True):
        seed_bars(panel, select(table, workload=workload, metric=RATE), names, across=True)
        for place, policy in enumerate(names):
            if (workload, policy) in PAPER:
                paper_marker(panel, sources.paper(PAPER[workload, policy]), place)
        panel.set(title=WORKLOAD_TITLES[workload], xlabel="token/s")
    figure.tight_layout()
    marks_legend(figure)
    notes = ("From the short study `demo`; `libra run end_to_end` runs the whole comparison.",) * (study == "demo")
    notes += holds(sources, LIBRA, UNIFORM) + holds(sources, LIBRA, HOMOGENEOUS)
    return Plot("throughput", title, CAPTION, figure, _ratios(sources, table, workloads), notes)


def _ratios(sources: Sources, table: pd.DataFrame, workloads: list[str]) -> pd.DataFrame:
    """Each system against verl-static-uniform and against the best homogeneous plan that ran, paired by seed."""
    rows = []
    best = HOMOGENEOUS if (table["policy"] == HOMOGENEOUS).any() else STATIC_OPTIMAL
    for workload in workloads:
        for policy in policies_in(table, SYSTEM_ORDER, workload=workload):
            ours: dict[str, object] = {"workload": workload, "metric": RATE, "policy": policy}
            found, claim = interval(table, **ours), PAPER.get((workload, policy))
            row = {
                "workload": WORKLOAD_TITLES[workload],
                "system": policy,
                "seeds": str(found.n) if found else "0",
                "ours (token/s)": text(found, ",.0f"),
                "paper (token/s)": f"{sources.paper(claim):,.0f}" if claim else "",
            }
            for against in (UNIFORM, best):
                other = None if policy == against else ratio(table, ours, {**ours, "policy": against})
                row[f"ratio to {against} (x)"] = "1" if policy == against else text(other, ".3f")
            for metric, (name, digits) in MORE.items():
                row[name] = mean_text(interval(table, **{**ours, "metric": metric}), digits)
            rows.append(row)
    return pd.DataFrame(rows)
