"""Verbs of `libra fidelity` and their options; what they do is imported only when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import STORE, JsonOption, StoreOption

fidelity_app = typer.Typer(no_args_is_help=True, help="The simulator against live runs of this machine.")


@fidelity_app.command()
def predict(
    out: Annotated[Path, typer.Argument(help="File for the predictions; commit it before the runs.")],
    store: StoreOption = STORE,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each kind; default is the study's.")] = None,
    steps: Annotated[int | None, typer.Option(min=2, help="Training steps a run; default is the study's.")] = None,
    json: JsonOption = False,
) -> None:
    """Fit a table to the runs of study `fidelity_calibration`, and predict those of study `fidelity`."""
    from experiments.commands import fidelity

    fidelity.predict(store, out, seeds=seeds, steps=steps, as_json=json)


@fidelity_app.command()
def compare(
    predictions: Annotated[Path, typer.Argument(help="What `libra fidelity predict` wrote.")],
    store: StoreOption = STORE,
    json: JsonOption = False,
) -> None:
    """Predicted against measured makespan and throughput, run by run; exit 3 when the mean error is above 10 %."""
    from experiments.commands import fidelity

    fidelity.compare(store, predictions, as_json=json)
