"""Reward against wall-clock (the paper's Fig. 7, lower row). The reward curve is assumed: it judges no claim."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

from analysis.load import parquet_rows
from analysis.names import MAIN_STUDIES, TRAINING_STEPS, WORKLOAD_TITLES
from analysis.pairs import interval, policies_in, select, text
from analysis.statistics import Estimate
from analysis.style import PAPER, WIDTH_IN, Plot, colour, names_legend
from paper_figures.sources import SYSTEM_ORDER, Sources, titled

PAPER_HOURS = {"search-r1": "search-hours", "dapo-math": "dapo-hours", "r2e-gym": "r2e-hours"}
"""Claims: hours in which Libra finished."""

CAPTION = (
    "Mean reward of the trained batches against wall-clock, scaled to 500 training steps, mean over seeds, smoothed "
    "over a fifth of the run. The reward curve is **assumed, and the same for all systems by construction**: this "
    "figure shows speed only, and claims on time to reward are left to live runs. Systems with equal curves show as "
    "stripes, the later one on top. Dotted line: hours in which the paper's Libra finished."
)


def build(sources: Sources) -> Plot:
    """Panels by workload and the hours of a whole training."""
    title = "Reward against wall-clock (assumed reward curve)"
    study = sources.first_of(MAIN_STUDIES)
    missing = sources.missing(study)
    if missing:
        return Plot("reward", title, CAPTION, missing=missing)
    rows = parquet_rows(sources.cells(study), "trajectories", "trained_step, reward, end_s")
    rows = rows[rows["trained_step"] >= 0]
    workloads = titled(rows["workload"])
    figure, axes = plt.subplots(1, len(workloads), figsize=(WIDTH_IN, 3.0), squeeze=False)
    names = policies_in(rows, SYSTEM_ORDER)
    for panel, workload in zip(axes[0], workloads, strict=True):
        here = rows[rows["workload"] == workload]
        for place, policy in enumerate(policies_in(here, SYSTEM_ORDER)):
            curve = _curve(here[here["policy"] == policy])
            # Later lines are thinner, so that equal curves show as stripes and none hides another.
            width = 6.5 - 5.0 * place / max(1, len(names) - 1)
            sns.lineplot(
                data=curve, x="hours", y="reward", ax=panel, color=colour(policy), linewidth=width, errorbar=None
            )
        panel.axvline(sources.paper(PAPER_HOURS[workload]), color=PAPER, linestyle=":", linewidth=1.2)
        panel.set(title=WORKLOAD_TITLES[workload], xlabel="hours (500 steps)", ylabel="")
        panel.set_xlim(left=0)
    axes[0][0].set_ylabel("mean reward")
    figure.tight_layout()
    names_legend(figure, {name: name for name in names})
    return Plot("reward", title, CAPTION, figure, _hours(sources, sources.study(study), workloads))


def _curve(rows: pd.DataFrame) -> pd.DataFrame:
    """Reward (moving average over a fifth of the run) and hours by step, each the mean over seeds."""
    by_step = rows.groupby(["seed", "trained_step"]).agg({"reward": "mean", "end_s": "max"}).reset_index()
    mean = by_step.groupby("trained_step")[["reward", "end_s"]].mean()
    window = max(3, len(mean) // 5)
    hours = mean["end_s"] / 3600.0 * TRAINING_STEPS / len(mean)
    reward = mean["reward"].rolling(window, min_periods=1, center=True).mean()
    return pd.DataFrame({"hours": hours, "reward": reward})


def _hours(sources: Sources, table: pd.DataFrame, workloads: list[str]) -> pd.DataFrame:
    """Hours of 500 steps at the run's mean step, beside the paper's."""
    rows = []
    for workload in workloads:
        for policy in policies_in(table, SYSTEM_ORDER, workload=workload):
            makespan = select(table, workload=workload, policy=policy, metric="makespan_s").set_index("seed")["value"]
            steps = select(table, workload=workload, policy=policy, metric="steps").set_index("seed")["value"]
            hours = (makespan / steps * TRAINING_STEPS / 3600.0).rename("value").reset_index().assign(status="done")
            found: Estimate | None = interval(hours)
            paper = f"{sources.paper(PAPER_HOURS[workload]):g}" if policy == "libra" else ""
            rows.append(
                {
                    "workload": WORKLOAD_TITLES[workload],
                    "system": policy,
                    "500 steps, ours (h)": text(found, ",.1f"),
                    "paper (h)": paper,
                }
            )
    return pd.DataFrame(rows)
