"""Routing quality on the authors' heterogeneous layout (the paper's routing table)."""

from __future__ import annotations

import pandas as pd
from matplotlib import pyplot as plt

from analysis.names import RATE, WORKLOAD_TITLES
from analysis.pairs import interval, policies_in, ratio, select, text
from analysis.statistics import Estimate
from analysis.style import WIDTH_IN, Plot, marks_legend, paper_marker, seed_bars
from paper_figures.sources import Sources, titled

ACCURACY, MIGRATED = "routing_accuracy", "migrated_token_ratio"
ORDER = tuple(
    f"pattern-{router}"
    for router in ("blind", "turn-index", "mlfq", "prompt-history", "prompt-history-promote", "cmlfq", "oracle")
)
PAPER = {
    ("pattern-cmlfq", ACCURACY): "routing-accuracy-cmlfq",
    ("pattern-mlfq", ACCURACY): "routing-accuracy-mlfq",
    ("pattern-cmlfq", MIGRATED): "routing-migrated-cmlfq",
    ("pattern-mlfq", MIGRATED): "routing-migrated-mlfq",
}
"""Claims, all on Search-R1. The paper's embedding predictor (65.2 %) is not built yet."""

CAPTION = (
    "The same heterogeneous instances (TP 1, 1, 2, 4 on each node, three buckets) under seven routers. One-shot "
    "accuracy: the bucket of a trajectory's first change of bucket (its first bucket when it never changed) against "
    "the bucket of its true length; for the blind router, which looks at no length, it is the bucket of the "
    "instance that it happened to choose. The oracle knows the true length. In these generated workloads a tool "
    "return says nothing about what is left beyond the context itself, which is what public traces show; the study "
    "`sensitivity` has the other world."
)


def build(sources: Sources) -> Plot:
    """Throughput and accuracy by router, a row of panels for each workload."""
    title = "Routing quality"
    missing = sources.missing("routing")
    if missing:
        return Plot("routing", title, CAPTION, missing=missing)
    table = sources.study("routing")
    workloads = titled(select(table)["workload"])
    names = policies_in(table, ORDER)
    size = (WIDTH_IN, 0.6 + (0.7 + 0.26 * len(names)) * len(workloads))
    figure, axes = plt.subplots(len(workloads), 2, figsize=size, squeeze=False, sharey=True)
    for (left, right), workload in zip(axes, workloads, strict=True):
        seed_bars(left, select(table, workload=workload, metric=RATE), names, across=True)
        seed_bars(right, select(table, workload=workload, metric=ACCURACY), names, across=True)
        for place, policy in enumerate(names):
            if workload == "search-r1" and (policy, ACCURACY) in PAPER:
                paper_marker(right, sources.paper(PAPER[policy, ACCURACY]) / 100.0, place)
        left.set_yticks(range(len(names)), [name.removeprefix("pattern-") for name in names])
        left.set(title=f"{WORKLOAD_TITLES[workload]}: throughput", xlabel="token/s")
        right.set(title="one-shot accuracy", xlabel="share of trajectories", xlim=(0, 1.04))
    figure.tight_layout()
    marks_legend(figure)
    rows = [_row(sources, table, workload, policy) for workload in workloads for policy in names]
    return Plot("routing", title, CAPTION, figure, pd.DataFrame(rows))


def _row(sources: Sources, table: pd.DataFrame, workload: str, policy: str) -> dict[str, str]:
    where: dict[str, object] = {"workload": workload, "policy": policy}
    rate = {**where, "metric": RATE}
    paper = {
        metric: f"{sources.paper(PAPER[policy, metric]) / 100.0:.3f}"
        for metric in (ACCURACY, MIGRATED)
        if workload == "search-r1" and (policy, metric) in PAPER
    }
    least = ">= " if policy == "pattern-mlfq" and MIGRATED in paper else ""
    return {
        "workload": WORKLOAD_TITLES[workload],
        "router": policy.removeprefix("pattern-"),
        "ours (token/s)": text(interval(table, **rate), ",.0f"),
        "ratio to blind (x)": "1" if policy == "pattern-blind" else text(_to_blind(table, rate), ".3f"),
        "one-shot accuracy, ours (0-1)": text(interval(table, **where, metric=ACCURACY), ".3f"),
        "paper (0-1)": paper.get(ACCURACY, ""),
        "accuracy of the last bucket (0-1)": text(interval(table, **where, metric="routing_accuracy_final"), ".3f"),
        "migrated-token ratio, ours (1)": text(interval(table, **where, metric=MIGRATED), ".3f"),
        "paper (1)": least + paper.get(MIGRATED, ""),
    }


def _to_blind(table: pd.DataFrame, rate: dict[str, object]) -> Estimate | None:
    return ratio(table, rate, {**rate, "policy": "pattern-blind"})
