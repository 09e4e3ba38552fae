"""Step times that other projects printed, beside an overlap model of their own stage times (`analysis.published`)."""

from __future__ import annotations

import pandas as pd

from analysis.published import Prediction, PublishedRow, predict_rows
from analysis.style import Plot
from paper_figures.sources import Sources

CAPTION = (
    "For each overlapped run: the step that its synchronous stage times predict. The low end of a range has rollout "
    "bound by throughput, the high end by its longest trajectories; training scales with its GPUs. Errors are of "
    "either end against the printed step. Balanced split: the rollout : training split that the model would choose, "
    "and bound, the most that overlapping could give by this model. No row is simulated, because no source gives "
    "hardware, model, batch and lengths together."
)


def build(sources: Sources) -> Plot:
    """One table; it needs no store."""
    del sources
    rows = [_row(row) for row in predict_rows()]
    return Plot("published_steps", "Published step tables beside the overlap model", CAPTION, table=pd.DataFrame(rows))


def _row(row: PublishedRow) -> dict[str, str]:
    applying = [item for item in row.predictions if item.applies]
    return {
        "run": row.id,
        "kind": row.table,
        "GPUs (rollout:training)": row.split,
        "before (s)": _number(row.before_s),
        "theirs (s)": _number(row.observed_s),
        "ours (s)": "; ".join(_range(item.low_s, item.high_s, ",.4g") for item in applying),
        "theirs against ours": row.position,
        "error (%)": "; ".join(_errors(item) for item in applying if item.error_low is not None),
        "balanced split": "; ".join(
            f"{split.rollout_gpus}:{split.train_gpus} ({split.bound_by}-bound)" for split in row.balanced
        ),
        "speed-up, theirs (x)": "" if row.step_speedup is None else f"{row.step_speedup:.2f}",
        "bound (x)": "" if row.bound_speedup is None else f"{row.bound_speedup:.2f}",
        "simulated": row.not_simulable or "yes",
        "note": row.note,
        "source": row.source,
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"


def _range(low: float, high: float, digits: str) -> str:
    return f"{low:{digits}}" if f"{low:{digits}}" == f"{high:{digits}}" else f"{low:{digits}} to {high:{digits}}"


def _errors(item: Prediction) -> str:
    assert item.error_low is not None and item.error_high is not None, "both ends have an error or none has"
    return _range(100.0 * item.error_low, 100.0 * item.error_high, "+.0f")
