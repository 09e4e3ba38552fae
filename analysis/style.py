"""One look for all figures: a fixed colour per system, hollow markers for the paper, deterministic SVG and PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from analysis.statistics import mean_interval
from libra.results.atomic import make_folder, store_errors

COLOURS: dict[str, str] = {
    "verl-colocated": "#9aa0a6",
    "verl-static-uniform": "#5b7fa6",
    "verl-greedy-heuristic": "#6aa9a0",
    "areal-static-optimal": "#b28a3c",
    "best-homogeneous": "#4a4a4a",
    "libra": "#c8442e",
    "libra-homogeneous": "#e5a58f",
    "libra-hetero": "#dd8068",
    "libra-cmlfq": "#d4624a",
    "pattern-blind": "#b9a7d0",
    "pattern-turn-index": "#a894c6",
    "pattern-mlfq": "#9a82bd",
    "pattern-prompt-history": "#8c70b3",
    "pattern-prompt-history-promote": "#7d5eaa",
    "pattern-cmlfq": "#6a3d9a",
    "pattern-oracle": "#402060",
    "static-tp1": "#5b7fa6",
    "static-tp2": "#6aa9a0",
    "static-tp4": "#b28a3c",
    "static-tp8": "#c8442e",
}
FALLBACK = "#777777"
INK = "#222222"
PAPER = "#111111"
"""Colour of the paper's own numbers: always hollow, so they are never taken for ours."""

PAPER_MARGIN = 1.08
"""Room beyond a hollow diamond, so that it stands inside the frame."""

WIDTH_IN = 9.0
DPI = 110


@dataclass(frozen=True)
class Plot:
    """A figure or table of the report. `missing` says what the store lacks for it; then there is nothing to draw.

    Texts may mark `code` and **stress**; they are plain text otherwise. Column names of the table carry units.
    """

    name: str
    title: str
    caption: str
    figure: Figure | None = None
    table: pd.DataFrame | None = None
    notes: tuple[str, ...] = ()
    missing: str = ""


def colour(policy: str) -> str:
    """Colour of a system, equal in every figure."""
    return COLOURS.get(policy, FALLBACK)


def use_style() -> None:
    """Set matplotlib and seaborn up; call it before drawing."""
    matplotlib.use("Agg")
    sns.set_theme(context="paper", style="whitegrid", font_scale=1.0)
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "libra",
            "svg.fonttype": "path",
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.titlesize": 10,
            "axes.labelsize": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.edgecolor": "#999999",
            "grid.color": "#e4e4e4",
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "figure.dpi": DPI,
            "figure.max_open_warning": 0,
            "legend.frameon": False,
            "legend.fontsize": 8,
            "legend.title_fontsize": 8,
        }
    )


def t_band(values: Sequence[float]) -> tuple[float, float]:
    """95 % t interval of the mean, for seaborn's `errorbar`; the value itself where there is one seed."""
    found = mean_interval(dict(enumerate(values)))
    return (found.value, found.value) if found.low is None or found.high is None else (found.low, found.high)


def seed_bars(axes: Axes, rows: pd.DataFrame, order: Sequence[str], *, across: bool = False) -> None:
    """A bar per system of `order` at the mean of its seeds, with its 95 % interval and a dot for every seed.

    `rows` has columns policy and value, one row a seed. `across` lays the bars down; a name without rows leaves a gap.
    """
    x, y = ("value", "policy") if across else ("policy", "value")
    sns.barplot(
        data=rows, x=x, y=y, order=order, hue="policy", hue_order=order, palette={name: colour(name) for name in order},
        saturation=1.0, legend=False, errorbar=t_band, capsize=0.25, err_kws={"color": INK, "linewidth": 1.0},
        width=0.72, ax=axes,
    )  # fmt: skip
    sns.stripplot(
        data=rows, x=x, y=y, order=order, color="white", edgecolor=INK, linewidth=0.7, size=3.6, jitter=False,
        zorder=4, ax=axes,
    )  # fmt: skip
    _frame(axes, rows["value"], across=across)
    axes.set(xlabel="", ylabel="")
    axes.grid(axis="y" if across else "x", visible=False)


def _frame(axes: Axes, values: pd.Series, *, across: bool) -> None:
    """From 0 to a little above the largest seed: the whiskers of two seeds would shrink everything else to nothing."""
    top = 1.3 * float(values.max()) if len(values) and values.max() > 0 else 1.0
    if across:
        axes.set_xlim(0.0, min(top, axes.get_xlim()[1]))
    else:
        axes.set_ylim(0.0, min(top, axes.get_ylim()[1]))


def paper_marker(axes: Axes, x: float, y: float, edge: str = PAPER) -> None:
    """One of the paper's numbers: a hollow diamond. The frame grows where it would lie outside."""
    if x > axes.get_xlim()[1]:
        axes.set_xlim(right=PAPER_MARGIN * x)
    if y > axes.get_ylim()[1] > axes.get_ylim()[0]:
        axes.set_ylim(top=PAPER_MARGIN * y)
    axes.plot([x], [y], zorder=5, clip_on=False, **_diamond(edge))


def _diamond(edge: str) -> dict[str, Any]:
    return {
        "marker": "D", "markersize": 7, "markerfacecolor": "none", "markeredgecolor": edge, "markeredgewidth": 1.4,
        "linestyle": "none",
    }  # fmt: skip


def plain_log(axis: Axis) -> None:
    """A logarithmic axis with ticks at 1, 2 and 5 of every decade, written as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def marks_legend(figure: Figure, *, seeds: bool = True, paper: bool = True) -> None:
    """Below the panels: what dots, whiskers and hollow diamonds stand for."""
    dot = Line2D([], [], marker="o", color="white", markeredgecolor=INK, markersize=4, linestyle="none")
    bar = Line2D([], [], color=INK, linewidth=1.2, marker="|", markersize=6)
    handles: list[Artist] = [dot, bar] if seeds else []
    labels = ["one seed", "95 % interval of the mean"] if seeds else []
    if paper:
        handles.append(Line2D([], [], **_diamond(PAPER)))
        labels.append("the paper's number (hollow)")
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(labels))


def lines_legend(figure: Figure, lines: Mapping[str, str]) -> None:
    """Below the panels: lines by label and colour, and the paper's hollow diamond."""
    handles = [Line2D([], [], color=shade, linewidth=2) for shade in lines.values()]
    handles.append(Line2D([], [], **_diamond(PAPER)))
    labels = [*lines, "the paper's number (hollow)"]
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=len(labels))


def names_legend(figure: Figure, names: Mapping[str, str]) -> None:
    """Below the panels: systems by colour; `names` maps a label to the system whose colour it has."""
    handles = [Line2D([], [], color=colour(name), linewidth=5) for name in names.values()]
    figure.legend(handles, list(names), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=min(6, len(names)),
                  columnspacing=1.2, handlelength=1.2)  # fmt: skip


def svg(figure: Figure) -> str:
    """The figure as an SVG element for inlining (no XML prolog, no date: equal data give equal text)."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


_NUMBER = r"-?[\d,]+(?:\.\d+)?(?:e[-+]?\d+)?"
_WITH_INTERVAL = re.compile(rf"({_NUMBER})(?: \[({_NUMBER}), ({_NUMBER})\])?")


def plain(table: pd.DataFrame) -> pd.DataFrame:
    """A table for programs: numbers without thousands separators, an interval's ends in columns `low` and `high`."""
    columns: dict[str, list[str]] = {}
    for name in table.columns:
        found = [(text, _WITH_INTERVAL.fullmatch(text)) for text in map(str, table[name].fillna(""))]
        columns[name] = [match[1].replace(",", "") if match else text for text, match in found]
        if any(match and match[2] for _, match in found):
            for place, end in ((2, "low"), (3, "high")):
                ends = [match[place] if match and match[place] else "" for _, match in found]
                columns[f"{name} {end}"] = [text.replace(",", "") for text in ends]
    return pd.DataFrame(columns)


def save(plot: Plot, folder: Path, endings: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write the figure in each format and the table as CSV; returns the files. Raises `StoreError`."""
    make_folder(folder)
    files = []
    if plot.figure is not None:
        for ending in endings:
            file = folder / f"{plot.name}.{ending}"
            metadata = {"Date": None, "Creator": None} if ending == "svg" else {"Software": None}
            with store_errors(file):
                plot.figure.savefig(file, metadata=metadata, bbox_inches="tight", dpi=2 * DPI)
            files.append(file)
    if plot.table is not None:
        file = folder / f"{plot.name}.csv"
        with store_errors(file):
            plain(plot.table).to_csv(file, index=False)
        files.append(file)
    return files
