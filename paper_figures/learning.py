"""Learning curves of live runs: real gradients on real tasks, beside controls that must not learn."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.ticker import MaxNLocator

from analysis.names import WORKLOAD_TITLES
from analysis.style import WIDTH_IN, Plot
from libra.results.store import StoredCell
from paper_figures.sources import Sources

STUDY = "train"
TITLE = "Learning curves of live runs"
CAPTION = (
    "Mean reward by training step of `libra train`: dots are held-out tasks (one sample each at temperature 1), thin "
    "lines the trained batches. GRPO inside verl with real vLLM engines and real tools; a tiny policy on CPU cores "
    "unless the cluster says otherwise. Controls: **rate 0** trains without learning, **shuffled** gives each "
    "trajectory a reward drawn among the last 256. The table compares the first and the last quarter of the "
    "held-out evaluations; a run has **learned** when it gained at least 0.12, two standard errors of the difference "
    "of two evaluations on 128 tasks."
)
MARGIN = 0.12
COLOURS = {"true rewards": "#3d6a9e", "rate 0": "#8a8f94", "shuffled": "#c4452d"}


def build(sources: Sources) -> Plot:
    """Panels by workload; missing without live cells."""
    cells = [cell for cell in sources.cells(STUDY) if (cell.path / "curve.json").exists()]
    if not cells:
        return Plot("learning", TITLE, CAPTION, missing="No live run: run `libra train WORKLOAD`.")
    rows = pd.DataFrame([row for cell in cells for row in _rows(cell)])
    workloads = [name for name in WORKLOAD_TITLES if name in set(rows["workload"])]
    workloads += sorted(set(rows["workload"]) - set(workloads))
    return Plot("learning", TITLE, CAPTION, _figure(rows, workloads), _table(rows, workloads))


def _kind(cell: StoredCell) -> str:
    if cell.cell.override("live.learning_rate") == 0:
        return "rate 0"
    return "shuffled" if cell.cell.override("live.rewards") == "shuffled" else "true rewards"


def _rows(cell: StoredCell) -> Iterable[dict[str, object]]:
    what = {"workload": cell.cell.workload, "kind": _kind(cell), "seed": cell.cell.seed, "cell": cell.id}
    for row in json.loads((cell.path / "curve.json").read_bytes()):
        yield {**what, **{name: row.get(name) for name in ("step", "train_reward", "held_out_reward")}}


def _figure(rows: pd.DataFrame, workloads: Sequence[str]) -> plt.Figure:
    figure, panels = plt.subplots(1, len(workloads), figsize=(WIDTH_IN, 3.0), squeeze=False, sharey=True)
    for axes, workload in zip(panels[0], workloads, strict=True):
        here = rows[rows["workload"] == workload]
        for (kind, _), one in here.groupby(["kind", "cell"]):
            axes.plot(one["step"], one["train_reward"], color=COLOURS[str(kind)], lw=0.6, alpha=0.5)
            held = one.dropna(subset=["held_out_reward"])
            sns.lineplot(data=held, x="step", y="held_out_reward", ax=axes, color=COLOURS[str(kind)], marker="o",
                         errorbar=None)  # fmt: skip
        axes.set(title=WORKLOAD_TITLES.get(workload, workload), xlabel="training step", ylabel="")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0][0].set_ylabel("mean reward")
    used = [kind for kind in COLOURS if kind in set(rows["kind"])]
    handles = [plt.Line2D([], [], color=COLOURS[kind], marker="o", label=kind) for kind in used]
    figure.legend(handles=handles, fontsize=7, loc="lower center", ncols=len(used), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def _table(rows: pd.DataFrame, workloads: Sequence[str]) -> pd.DataFrame:
    found = []
    for workload in workloads:
        held = rows[(rows["workload"] == workload)].dropna(subset=["held_out_reward"])
        for kind in (kind for kind in COLOURS if kind in set(held["kind"])):
            gains = [
                _quarters(one["held_out_reward"].tolist()) for _, one in held[held["kind"] == kind].groupby("cell")
            ]
            starts, ends = [first for first, _ in gains], [last for _, last in gains]
            found.append({
                "workload": WORKLOAD_TITLES.get(workload, workload),
                "run": kind,
                "runs": str(len(gains)),
                "first quarter": ", ".join(f"{value:.3f}" for value in starts),
                "last quarter": ", ".join(f"{value:.3f}" for value in ends),
                "gain": ", ".join(f"{last - first:+.3f}" for first, last in gains),
                "learned": f"{sum(last - first >= MARGIN for first, last in gains)} of {len(gains)}",
            })  # fmt: skip
    return pd.DataFrame(found)


def _quarters(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and the last quarter (at least one value each)."""
    size = max(1, len(values) // 4)
    return sum(values[:size]) / size, sum(values[-size:]) / size
