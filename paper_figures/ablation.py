"""Ablation waterfall on R2E-Gym (the paper's Fig. 8), ours beside the reported 423, 510, 551, 666, 763 token/s."""

from __future__ import annotations

from itertools import pairwise

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from analysis.names import RATE, UNIFORM
from analysis.pairs import interval, ratio, select, text
from analysis.style import INK, WIDTH_IN, Plot, marks_legend, paper_marker, seed_bars
from paper_figures.sources import Sources

CHAIN = (
    (UNIFORM, "Static-Uniform\n", "ablation-base"),
    ("libra-homogeneous", "+ planner\n(equal instances)", "ablation-planner"),
    ("libra-hetero", "+ heterogeneous\nTP", "ablation-hetero"),
    ("libra-cmlfq", "+ C-MLFQ\n", "ablation-cmlfq"),
    ("libra", "+ elastic pool\n= Libra", "ablation-libra"),
)
"""System, label, and the claim with the paper's level."""

PATTERN = (("pattern-blind", "released layout,\nblind", ""), ("pattern-cmlfq", "released layout\n+ C-MLFQ", ""))
GAP = ""
CAPTION = (
    "Tokens per second of the whole cluster on R2E-Gym; above each bar the paired ratio to the bar before it. Left: "
    "Libra part by part, where the planner may also choose equal instances. Right: the tensor-parallel pattern of "
    "the authors' released configuration (TP 1, 1, 2, 4 on each node), without and with C-MLFQ. Hollow diamonds: "
    "the paper (551 and 666 are sums of its printed increments)."
)


def build(sources: Sources) -> Plot:
    """Bars of both chains and a table of the steps."""
    title = "Ablation on R2E-Gym"
    missing = sources.missing("ablation")
    if missing:
        return Plot("ablation", title, CAPTION, missing=missing)
    table = sources.study("ablation")
    order = [*(name for name, _, _ in CHAIN), GAP, *(name for name, _, _ in PATTERN)]
    figure, panel = plt.subplots(figsize=(WIDTH_IN, 3.6))
    seed_bars(panel, select(table, metric=RATE), order)
    for place, (_, _, claim) in enumerate(CHAIN):
        paper_marker(panel, place, sources.paper(claim))
    top = panel.get_ylim()[1]
    for before, after in pairwise(order):
        if GAP not in (before, after):
            _ratio_label(panel, table, before, after, order.index(after), top)
    panel.set_ylim(0, 1.1 * top)
    panel.set_xticks(range(len(order)), [*(label for _, label, _ in CHAIN), "", *(label for _, label, _ in PATTERN)])
    panel.set_ylabel("token/s")
    figure.tight_layout()
    marks_legend(figure)
    return Plot("ablation", title, CAPTION, figure, _steps(sources, table))


def _ratio_label(panel: Axes, table: pd.DataFrame, before: str, after: str, place: int, y: float) -> None:
    found = ratio(table, {"policy": after, "metric": RATE}, {"policy": before, "metric": RATE})
    if found is not None:
        panel.text(place, 1.02 * y, f"× {found.value:.2f}", ha="center", va="bottom", fontsize=8, color=INK)


def _steps(sources: Sources, table: pd.DataFrame) -> pd.DataFrame:
    """Each part's gain over the one before it, paired by seed, the paper's beside it."""
    rows = []
    pairs = [*pairwise(CHAIN), (PATTERN[0], PATTERN[1]), (CHAIN[0], CHAIN[-1])]
    for (before, _, claim_before), (after, label, claim_after) in pairs:
        whole = (before, after) == (UNIFORM, "libra")
        found = ratio(table, {"policy": after, "metric": RATE}, {"policy": before, "metric": RATE})
        paper = sources.paper(claim_after) / sources.paper(claim_before) if claim_after and claim_before else None
        rows.append(
            {
                "part": "all of Libra" if whole else label.replace("\n", " ").strip(),
                "from": before,
                "to": after,
                "seeds": str(found.n) if found else "0",
                "ours (token/s)": text(interval(table, policy=after, metric=RATE), ",.0f"),
                "ratio, ours (x)": text(found, ".3f"),
                "ratio, paper (x)": "" if paper is None else f"{paper:.3f}",
            }
        )
    return pd.DataFrame(rows)
