"""Drift during training (the paper's Fig. 2b): mean length, rollout and training time by training step."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from analysis.load import parquet_rows
from analysis.names import MAIN_STUDIES, TRAINING_STEPS, UNIFORM, WORKLOAD_TITLES
from analysis.style import WIDTH_IN, Plot, lines_legend, paper_marker, plain_log
from paper_figures.sources import Sources, titled

COLUMNS = "step, rollout_s, train_s, (prompt_tok + generated_tok + observed_tok) / num_trajectories as mean_tok"
LENGTH, ROLLOUT, TRAINING, THIN = "#4a4a4a", "#c8442e", "#2f6690", "#c9c9c9"
CAPTION = (
    f"`{UNIFORM}` on each workload: mean trajectory length (left), and time of rollout and training of each step "
    "(right, logarithmic), thick: mean over seeds, thin: every seed. A run simulates some of the 500 training "
    "steps, spread over the whole drift. Hollow diamonds: the paper's mean length, 2.5K rising to 11.5K tokens (it "
    "names no workload; drawn on R2E-Gym, whose generator takes them as input, so their agreement is no evidence)."
)


def build(sources: Sources) -> Plot:
    """Two panels by workload and a table of the first and last tenth."""
    title = "Drift of length and of stage times"
    study = sources.first_of(MAIN_STUDIES)
    missing = sources.missing(study)
    cells = [cell for cell in sources.cells(study) if cell.cell.policy == UNIFORM]
    steps = parquet_rows(cells, "steps", COLUMNS)
    if missing or steps.empty:
        return Plot("drift", title, CAPTION, missing=missing or f"No finished cell of {UNIFORM} in study {study}.")
    last = steps.groupby("id")["step"].transform("max")
    steps["training_step"] = steps["step"] / last.clip(lower=1) * TRAINING_STEPS
    workloads = titled(steps["workload"])
    figure, axes = plt.subplots(len(workloads), 2, figsize=(WIDTH_IN, 0.5 + 1.9 * len(workloads)), squeeze=False)
    for (left, right), workload in zip(axes, workloads, strict=True):
        rows = steps[steps["workload"] == workload]
        _curve(left, rows, "mean_tok", LENGTH)
        _curve(right, rows, "rollout_s", ROLLOUT)
        _curve(right, rows, "train_s", TRAINING)
        if workload == "r2e-gym":
            paper_marker(left, 0, sources.paper("drift-length-start"))
            paper_marker(left, TRAINING_STEPS, sources.paper("drift-length-end"))
        left.set(title=f"{WORKLOAD_TITLES[workload]}: length", ylabel="mean length (token)", ylim=(0, None), xlabel="")
        right.set(title="stage times", ylabel="time (s)", yscale="log", xlabel="")
        plain_log(right.yaxis)
    for panel in axes[-1]:
        panel.set_xlabel("training step (of 500)")
    figure.tight_layout()
    lines = {"length": LENGTH, "rollout": ROLLOUT, "training": TRAINING}
    lines_legend(figure, {**lines, "one seed (thin)": THIN})
    return Plot("drift", title, CAPTION, figure, _tenths(steps, workloads))


def _curve(panel: Axes, rows: pd.DataFrame, column: str, shade: str) -> None:
    """Thin lines for seeds, a thick one for their mean."""
    sns.lineplot(
        data=rows, x="training_step", y=column, units="seed", estimator=None, color=shade, linewidth=0.7, alpha=0.35,
        ax=panel,
    )  # fmt: skip
    sns.lineplot(data=rows, x="training_step", y=column, errorbar=None, color=shade, linewidth=1.8, ax=panel)


def _tenths(steps: pd.DataFrame, workloads: list[str]) -> pd.DataFrame:
    """Means over the first and the last tenth of the steps (at least one step of every seed)."""
    rows = []
    for workload in workloads:
        here = steps[steps["workload"] == workload]
        tenth = max(1, (int(here["step"].max()) + 1) // 10)
        first, last = here[here["step"] < tenth], here[here["step"] > here["step"].max() - tenth]
        row = {"workload": WORKLOAD_TITLES[workload]}
        for column, name in (("mean_tok", "length (token)"), ("rollout_s", "rollout (s)"), ("train_s", "training (s)")):
            row[f"{name}, first tenth"] = f"{first[column].mean():,.0f}"
            row[f"{name}, last tenth"] = f"{last[column].mean():,.0f}"
        rows.append(row)
    return pd.DataFrame(rows)
