"""Settings under which stage times grow from 1K to 32K tokens as the paper says (its Fig. 2a: x95 and x3.9)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from analysis.pairs import select
from analysis.style import PAPER, WIDTH_IN, Plot, colour, plain_log
from paper_figures.growth import BATCH, LENGTH, LONGEST_TOK, SHORTEST_TOK
from paper_figures.sources import Sources
from paper_figures.variants import with_overrides

ROLLOUT_GPUS = 32
SHIPPED_FIXED_S = 9.0
FIXED = "sim.replace"
NEAR = 0.15
"""Within 15 % of the paper's factor counts as holding."""
CAPTION = (
    "Equal trajectories on 16 training and 32 rollout GPUs, Qwen3-14B. Left: growth of a step's rollout latency by "
    "trajectories per rollout GPU and tensor parallelism. Right: growth of training time by trajectories a step and "
    "by the fixed time of a training step, which is an assumption of the simulator (9 s). Dashed: the paper; band: "
    "within 15 %."
)


def build(sources: Sources) -> Plot:
    """A panel for each stage, and a table of the settings that come nearest."""
    title = "Settings that give the paper's growth from 1K to 32K"
    missing = sources.missing("growth")
    if missing:
        return Plot("growth_settings", title, CAPTION, missing=missing)
    rows = with_overrides(select(sources.study("growth")))
    if FIXED not in rows:
        rows[FIXED] = None
    rows["fixed_s"] = rows[FIXED].map(_fixed_s)
    rollout = _growth(rows[(rows["metric"] == "rollout_s") & rows[FIXED].isna()], "policy")
    train = _growth(rows[(rows["metric"] == "train_s") & (rows["policy"] == "static-tp1")], "fixed_s")
    rollout["x"] = rollout[BATCH] / ROLLOUT_GPUS
    train["x"] = train[BATCH]
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH_IN, 3.2))
    papers = [sources.paper("growth-rollout"), sources.paper("growth-train")]
    _panel(axes[0], rollout, "policy", papers[0], "trajectories per rollout GPU", str)
    _panel(axes[1], train, "fixed_s", papers[1], "trajectories a step", lambda seconds: f"{seconds:.2g} s fixed")
    axes[0].set(title="rollout latency", ylabel="growth, 1K to 32K (x)")
    axes[1].set(title="training time")
    figure.tight_layout()
    return Plot(
        "growth_settings", title, CAPTION, figure, _nearest(rollout, train, papers), _note(rollout, train, papers)
    )


def _fixed_s(text: object) -> float:
    return float(text.partition("=")[2]) if isinstance(text, str) else SHIPPED_FIXED_S


def _growth(stage: pd.DataFrame, by: str) -> pd.DataFrame:
    """Ratio of 32K to 1K by setting and batch, averaged over seeds."""
    mean = stage.groupby([by, BATCH, LENGTH])["value"].mean().unstack(LENGTH)
    return (mean[LONGEST_TOK] / mean[SHORTEST_TOK]).rename("growth").dropna().reset_index()


def _panel(axes: Axes, found: pd.DataFrame, by: str, paper: float, label: str, name: Callable[..., str]) -> None:
    for place, (setting, members) in enumerate(found.groupby(by)):
        line = colour(setting) if isinstance(setting, str) else plt.get_cmap("crest")(0.15 + 0.25 * place)
        axes.plot(members["x"], members["growth"], "o-", color=line, ms=4, lw=1.2, label=name(setting))
    axes.axhspan(paper * (1 - NEAR), paper * (1 + NEAR), color=PAPER, alpha=0.08, lw=0)
    axes.axhline(paper, color=PAPER, lw=1.0, ls="--")
    axes.set(xscale="log", yscale="log", xlabel=label)
    for axis in (axes.xaxis, axes.yaxis):
        plain_log(axis)
    axes.legend(fontsize=7)


def _is_near(growth: pd.Series, paper: float) -> pd.Series:
    return (growth / paper - 1).abs() <= NEAR


def _nearest(rollout: pd.DataFrame, train: pd.DataFrame, papers: list[float]) -> pd.DataFrame:
    """For each line of the panels, the batch whose growth is nearest to the paper's."""
    parts = []
    for stage, by, found, paper in (
        ("rollout", "policy", rollout, papers[0]),
        ("training", "fixed_s", train, papers[1]),
    ):
        away = (found["growth"] / paper).map(math.log).abs()
        best = found.loc[away.groupby(found[by]).idxmin()]
        names = best[by] if stage == "rollout" else best[by].map("{:.3g} s fixed".format)
        columns = {
            "stage": stage,
            "setting": names,
            "trajectories a step": best[BATCH].astype(int).astype(str),
            "growth, ours (x)": best["growth"].map("{:.1f}".format),
            "growth, paper (x)": f"{paper:g}",
            "within 15 %": _is_near(best["growth"], paper).map({True: "yes", False: "no"}),
        }
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


def _note(rollout: pd.DataFrame, train: pd.DataFrame, papers: list[float]) -> tuple[str, ...]:
    near = [
        set(found[_is_near(found["growth"], paper)][BATCH])
        for found, paper in zip((rollout, train), papers, strict=True)
    ]
    both = sorted(near[0] & near[1])
    if both:
        return (f"Both hold at {', '.join(f'{batch:.0f}' for batch in both)} trajectories a step.",)
    texts = [", ".join(f"{batch:.0f}" for batch in sorted(batches)) or "no batch" for batches in near]
    fixed_s = sorted(set(train[_is_near(train["growth"], papers[1])]["fixed_s"]))
    fixed = " or ".join(f"{seconds:.2g} s" for seconds in fixed_s)
    setting = f" and {fixed} fixed ({SHIPPED_FIXED_S:g} s ship)" if fixed else ""
    return (
        f"**Both never hold at one batch on {ROLLOUT_GPUS} rollout GPUs**: rollout does at {texts[0]} trajectories a "
        f"step, training at {texts[1]}{setting}. Rollout asks for so many trajectories per GPU that a step small "
        "enough for training would have to run on about one of them.",
    )
