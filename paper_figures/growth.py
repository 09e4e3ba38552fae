"""Growth of rollout latency and training time with sequence length (the paper's Fig. 2a: x95 and x3.9, 1K to 32K)."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

from analysis.pairs import select
from analysis.style import WIDTH_IN, Plot, marks_legend, paper_marker, plain_log
from paper_figures.sources import Sources
from paper_figures.variants import label_lengths, with_overrides

SYSTEM = "static-tp1"
STAGES = (("rollout_s", "rollout latency", "growth-rollout"), ("train_s", "training time", "growth-train"))
BATCH, LENGTH = "workload.batch", "workload.length_tok"
SHORTEST_TOK, LONGEST_TOK = 1024, 32768
CAPTION = (
    "Time of a step's rollout and training with equal trajectories, relative to 1K tokens, for three batch sizes on "
    "16 training and 32 TP-1 rollout GPUs. The paper gives neither batch nor TP: its x95 and x3.9 (hollow diamonds) "
    "can hold together only for a small batch with a fixed cost per training step, which is an assumption of the "
    "simulator."
)


def build(sources: Sources) -> Plot:
    """A panel for each stage, a line for each batch."""
    title = "Growth of stage times with sequence length"
    missing = sources.missing("motivation")
    if missing:
        return Plot("growth", title, CAPTION, missing=missing)
    rows = with_overrides(select(sources.study("motivation"), policy=SYSTEM))
    rows = rows[rows["policy.num_train_gpus"].isna()]
    if not {SHORTEST_TOK, LONGEST_TOK} <= set(rows[LENGTH].dropna()):
        return Plot("growth", title, CAPTION, missing="Study motivation has not finished 1K and 32K tokens.")
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    tables = []
    for panel, (metric, name, claim) in zip(axes, STAGES, strict=True):
        mean = _growth(rows[rows["metric"] == metric])
        sns.lineplot(
            data=mean, x=LENGTH, y="growth", hue="batch", style="batch", markers=True, dashes=False, ax=panel,
            palette="crest", errorbar=None,
        )  # fmt: skip
        panel.set(xscale="log", yscale="log", ylabel=f"{name} (1K = 1)", title=name)
        paper_marker(panel, LONGEST_TOK, sources.paper(claim))
        plain_log(panel.yaxis)
        label_lengths(panel, sorted(set(mean[LENGTH])))
        panel.legend(title="trajectories a step", loc="upper left")
        tables.append(_rows(mean, name, sources.paper(claim)))
    figure.tight_layout()
    marks_legend(figure, seeds=False)
    return Plot("growth", title, CAPTION, figure, pd.concat(tables, ignore_index=True))


def _growth(stage: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds by batch and length, and its ratio to 1K tokens; batches without 1K are left out."""
    mean = stage.groupby([BATCH, LENGTH])["value"].mean().reset_index()
    base = mean[mean[LENGTH] == SHORTEST_TOK].set_index(BATCH)["value"]
    mean["base"] = mean[BATCH].map(base)
    mean["growth"] = mean["value"] / mean["base"]
    mean["batch"] = mean[BATCH].astype(int).astype(str)
    return mean.dropna(subset=["growth"])


def _rows(mean: pd.DataFrame, name: str, paper: float) -> pd.DataFrame:
    last = mean[mean[LENGTH] == LONGEST_TOK]
    return pd.DataFrame(
        {
            "stage": name,
            "batch (trajectories)": last["batch"],
            "at 1K (s)": last["base"].map("{:.2f}".format),
            "at 32K (s)": last["value"].map("{:,.1f}".format),
            "growth, ours (x)": last["growth"].map("{:.1f}".format),
            "growth, paper (x)": f"{paper:g}",
        }
    )
