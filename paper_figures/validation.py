"""The simulator's times beside measured ones, from what `libra validate` left in the store."""

from __future__ import annotations

import json
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.ticker import LogLocator

from analysis.style import WIDTH_IN, Plot, plain_log
from libra.results.store import VALIDATION_FILE
from paper_figures.sources import Sources

TITLE = "Predicted against measured times"
CAPTION = (
    "Each dot is one measured run, predicted end to end: left and middle with constants whose fit never saw its group "
    "of rows, right before anybody had opened the measurement. Line: equal; grey band: within 10 %. In the table "
    "operators are compared kernel by "
    "kernel, fitted rows with the constants that ship, and held-out rows as in the figure; development means that "
    "some assumption was chosen with these rows in view. Mechanisms were chosen with all rows in view, so held out "
    "means the constants only, and is no blind test. Blind rows were opened once, after their predictions had been "
    "committed; on GPUs other than A100 they also measure what carrying A100's efficiencies over by data sheet is "
    "worth. The interval of a mean is over groups of rows, "
    "or their range where they are few."
)
STAGES = {"serving": "serving, held out", "training": "training, held out", "blind": "blind, frozen predictions"}
FEW_GROUPS = 6
"""With fewer groups of rows `libra validate` gives the range of their means instead of an interval."""
COLOURS = ("#3d6a9e", "#c4452d", "#4a8f6a", "#8a6bbf", "#b98a2f", "#5b6670", "#2f9a9a")


def build(sources: Sources) -> Plot:
    """Scatter of the held-out rows and the table of errors; missing without the file."""
    file = sources.store.root / VALIDATION_FILE
    if not file.exists():
        return Plot("validation", TITLE, CAPTION, missing="Not validated: run `libra validate`.")
    found = json.loads(file.read_bytes())
    missed = [gate for gate in found["gates"] if not gate["met"]]
    notes = tuple(
        f"Gate missed: {gate['name']} is {gate['found']:.1%}, allowed {gate['limit']:.0%}"
        + (f" ({gate['reason']})." if gate["reason"] else ".")
        for gate in missed
    )
    ranges = (
        f"{c['name']} {c['value']:.4g} ({c['low']:.4g} to {c['high']:.4g} {c['unit']})" for c in found["constants"]
    )
    notes += (f"Fitted constants, with their range over the fits that leave one group out: {'; '.join(ranges)}.",)
    return Plot("validation", TITLE, CAPTION, _figure(found["points"]), _table(found["tables"]), notes)


def _figure(points: list[dict[str, Any]]) -> plt.Figure:
    figure, panels = plt.subplots(1, len(STAGES), figsize=(WIDTH_IN, 3.4))
    for axes, (stage, title) in zip(panels, STAGES.items(), strict=True):
        rows = pd.DataFrame([point for point in points if point["stage"] == stage])
        for colour, (group, members) in zip(cycle(COLOURS), rows.groupby("group"), strict=False):
            axes.plot(members["measured_s"], members["predicted_s"], "o", color=colour, ms=4, mfc="none",
                      label=str(group).replace("_", " "))  # fmt: skip
        low, high = rows["measured_s"].min() / 1.5, rows["measured_s"].max() * 1.5
        axes.plot([low, high], [low, high], color="#555", lw=0.8)
        axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#999", alpha=0.25, lw=0)
        axes.set(xscale="log", yscale="log", title=title, xlabel="measured (s)", ylabel="predicted (s)")
        for axis in (axes.xaxis, axes.yaxis):
            plain_log(axis)
            axis.set_major_locator(LogLocator())
        axes.legend(fontsize=6, loc="upper left")
    figure.tight_layout()
    return figure


def _table(tables: list[dict[str, Any]]) -> pd.DataFrame:
    def row(each: dict[str, Any]) -> dict[str, str]:
        few = "" if (each["num_groups"] or 99) >= FEW_GROUPS else f", range of {each['num_groups']} groups"
        interval = "" if each["low"] is None else f" [{each['low']:.1%}, {each['high']:.1%}{few}]"
        return {
            "table": each["name"].replace("_", " "),
            "rows": str(each["num_rows"]),
            "use": each["use"],
            "mean error": f"{each['mean']:.1%}{interval}",
            "median": f"{each['median']:.1%}",
            "P90": f"{each['p90']:.1%}",
            "largest": f"{each['largest']:.1%}",
            "worst row": each["worst"],
            "what": each["what"].split(" (github")[0],
        }

    return pd.DataFrame([row(each) for each in tables])
