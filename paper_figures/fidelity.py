"""Live runs of two CPU cores that the simulator predicted: each run's makespan and throughput, and the errors."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import msgspec
import pandas as pd

from analysis.fidelity import Fidelity, Pair, mean_error
from analysis.style import Plot
from libra.results.store import FIDELITY_FILE
from paper_figures.sources import Sources

TITLE = "Predicted against measured live runs"
CAPTION = (
    "Each row is one live run (vLLM engines, verl's trainer, real tools, all on two CPU cores), predicted by the "
    "simulator before it was made: timing from short calibration runs with one router and one pipeline, a table for "
    "each layout, trajectories drawn from the recordings of those. Makespan: from the first step's end to the last "
    "one's; token/s: prompt, generated and observed tokens trained in that time. **That logs replay to the same "
    "commands validates control; the errors speak of these runs' makespans, not of what one router or pipeline saves "
    "over another** (the same run repeated differs by as much), **and never of the timing of an "
    "A800**: the machine's own times are fitted, and on GPUs they are others. The learning rate is 0, so that lengths "
    "stay as they were recorded."
)
SHIPPED = Path(__file__).with_name(FIDELITY_FILE)
"""The study as it was made for this repository; a store with one of its own comes first."""
COLOURS = {"barrier": "#3d6a9e", "async": "#c4452d"}


def build(sources: Sources) -> Plot:
    """Scatter and table, run by run."""
    found = read(sources.store.root / FIDELITY_FILE) or read(SHIPPED)
    pairs = found.pairs() if found else []
    if found is None or not pairs:
        return Plot(
            "fidelity", TITLE, CAPTION, missing="No predicted live run; run `libra fidelity --help` for the steps."
        )
    return Plot("fidelity", TITLE, CAPTION, _figure(pairs), table_of(found), notes(found))


def read(path: Path) -> Fidelity | None:
    return msgspec.json.decode(path.read_bytes(), type=Fidelity) if path.exists() else None


def notes(found: Fidelity) -> tuple[str, ...]:
    """What it comes to, and where predictions and runs come from."""
    before, pairs = found.predictions, found.pairs()
    times = mean_error([pair.makespan_error for pair in pairs])
    rates = mean_error([pair.rate_error for pair in pairs])
    left = len(before.runs) - len(pairs)
    fitted = ", ".join(f"{name} {error:+.1%}" for name, error in before.residuals.items())
    return (
        f"Mean absolute error: makespan {times:.1%}, throughput {rates:.1%}, over {len(pairs)} runs"
        + (f"; {left} predicted runs were not made." if left else "."),
        f"Predictions of {before.date} (code {before.commit}) were committed in {found.predictions_commit}; the runs "
        f"were measured on {found.date} (code {found.measured_commit}) on {before.machine}.",
        f"After the fit the calibration runs' own makespans are off by {fitted}.",
        *found.said(),
    )


def table_of(found: Fidelity) -> pd.DataFrame:
    names = found.names()
    return pd.DataFrame([_row(names[pair.predicted.cell], pair) for pair in found.pairs()])


def _row(name: str, pair: Pair) -> dict[str, str]:
    predicted, measured = pair.predicted, pair.measured
    return {
        "run": name,
        "steps": str(measured.steps),
        "predicted (s)": f"{predicted.makespan_s:.1f} ({predicted.low_s:.1f} to {predicted.high_s:.1f})",
        "measured (s)": f"{measured.makespan_s:.1f}",
        "error of makespan": f"{pair.makespan_error:+.1%}",
        "error of the calibration's pace": f"{pair.carried_error:+.1%}",
        "predicted (token/s)": f"{predicted.tok_per_s:.1f}",
        "measured (token/s)": f"{measured.tok_per_s:.1f}",
        "error of throughput": f"{pair.rate_error:+.1%}",
        "replay of its log": measured.replay,
    }


def _figure(pairs: list[Pair]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(4.5, 3.6))
    for pair in pairs:
        kind = "async" if "pipeline.kind=async" in pair.measured.cell else "barrier"
        axes.plot(pair.measured.makespan_s, pair.predicted.makespan_s, "o", color=COLOURS[kind], ms=5, mfc="none")
    low = 0.9 * min(min(pair.measured.makespan_s, pair.predicted.makespan_s) for pair in pairs)
    high = 1.1 * max(max(pair.measured.makespan_s, pair.predicted.makespan_s) for pair in pairs)
    axes.plot([low, high], [low, high], color="#555", lw=0.8)
    axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color="#999", alpha=0.25, lw=0)
    axes.set(xlabel="measured makespan (s)", ylabel="predicted makespan (s)")
    handles = [
        plt.Line2D([], [], color=shade, marker="o", ls="", mfc="none", label=kind) for kind, shade in COLOURS.items()
    ]
    axes.legend(handles=handles, fontsize=7, loc="upper left")
    figure.tight_layout()
    return figure
