"""Throughput by tensor parallelism and length on 8 GPUs (the paper's Fig. 3, of which four cells are known)."""

from __future__ import annotations

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

from analysis.load import parquet_rows
from analysis.style import COLOURS, WIDTH_IN, Plot, colour, marks_legend, paper_marker, plain_log
from paper_figures.sources import Sources
from paper_figures.variants import label_lengths, with_overrides

LENGTH = "workload.length_tok"
NUM_GPUS = 8
PAPER = {
    ("static-tp1", 1024): "tp-study-short-tp1",
    ("static-tp8", 1024): "tp-study-short-tp8",
    ("static-tp1", 24576): "tp-study-long-tp1",
    ("static-tp8", 24576): "tp-study-long-tp8",
}
"""Claims by system and length; the bins 0-2K and 16-32K are drawn at their middles."""

CAPTION = (
    "Generated tokens over the rollout makespan, per GPU of eight rollout GPUs, 512 equal trajectories, Qwen3-14B, "
    "as 8 x TP-1 to 1 x TP-8. Hollow diamonds in the colour of their TP: the paper's four known cells read as per "
    "GPU, at the middle of their bins; read as a total of eight GPUs they would be eight times lower. Its TP-8 cell "
    "at 16K-32K lies above what the memory bandwidth of eight A800 allows when read per GPU."
)


def build(sources: Sources) -> Plot:
    """Throughput and latency by length, a line for each TP."""
    title = "Tensor parallelism by sequence length"
    missing = sources.missing("motivation")
    cells = [cell for cell in sources.cells("motivation") if cell.cell.override("policy.num_train_gpus") is not None]
    steps = parquet_rows(cells, "steps", "step, generated_tok, rollout_s")
    if missing or steps.empty:
        return Plot("tp_study", title, CAPTION, missing=missing or "No finished cell of the TP study.")
    rows = with_overrides(steps)
    rows["rate"] = rows["generated_tok"] / rows["rollout_s"] / NUM_GPUS
    mean = rows.groupby(["policy", LENGTH])[["rate", "rollout_s"]].mean().reset_index()
    mean["TP"] = mean["policy"].str.removeprefix("static-tp")
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    palette = {tp: COLOURS[f"static-tp{tp}"] for tp in sorted(set(mean["TP"]))}
    common = {"data": mean, "x": LENGTH, "hue": "TP", "style": "TP", "markers": True, "dashes": False,
              "palette": palette, "errorbar": None}  # fmt: skip
    sns.lineplot(y="rate", ax=left, **common)
    sns.lineplot(y="rollout_s", ax=right, legend=False, **common)
    for (policy, length), claim in PAPER.items():
        paper_marker(left, length, sources.paper(claim), colour(policy))
    left.set(xscale="log", ylim=(0, None), ylabel="generated token/s per GPU", title="rollout throughput")
    right.set(xscale="log", yscale="log", ylabel="rollout makespan (s)", title="rollout latency")
    plain_log(right.yaxis)
    for panel in (left, right):
        label_lengths(panel, sorted(set(mean[LENGTH])))
    left.legend(title="TP of each instance", loc="upper right")
    figure.tight_layout()
    marks_legend(figure, seeds=False)
    return Plot("tp_study", title, CAPTION, figure, _table(sources, mean))


def _table(sources: Sources, mean: pd.DataFrame) -> pd.DataFrame:
    """Token/s per GPU by length and TP; the paper's cells in rows of their own."""
    ours = mean.pivot(index=LENGTH, columns="TP", values="rate")
    rows = [
        {"length (token)": f"{length:,.0f}", **{_name(tp): f"{ours.loc[length, tp]:,.0f}" for tp in ours.columns}}
        for length in ours.index
    ]
    for label, length in (("paper, 0-2K", 1024), ("paper, 16-32K", 24576)):
        known = {_name(name[-1]): sources.paper(claim) for (name, at), claim in PAPER.items() if at == length}
        rows.append({"length (token)": label, **{name: f"{value:,.0f}" for name, value in known.items()}})
    return pd.DataFrame(rows).fillna("")


def _name(tp: str) -> str:
    return f"TP {tp} (token/s per GPU)"
