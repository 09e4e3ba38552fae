"""`libra fidelity`: fit a table to short live runs, predict longer ones, and compare when those have been made."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import msgspec

from analysis.fidelity import Fidelity, MeasuredRun, Predicted, Predictions, mean_error
from experiments.commands.calibrate import machine
from experiments.commands.output import console, print_json, table
from libra.core.errors import ConfigError
from libra.core.registry import Registry, StudyArgs, StudySpec
from libra.results.atomic import write_bytes
from libra.results.cell import Cell
from libra.results.store import FIDELITY_FILE, Store, StoredCell

if TYPE_CHECKING:
    from libra.backends.sim.shared.fit import Calibration
    from libra.backends.sim.shared.play import Scene
    from libra.backends.sim.shared.table import Table
    from libra.results.schemas import StepRow

CALIBRATION, STUDY = "fidelity_calibration", "fidelity"
NUM_DRAWS = 8
"""Simulated runs behind a prediction, each on its own draw of the recorded groups."""
MAX_ERROR = 0.10
"""Mean absolute error of the makespans that the comparison allows."""
EXIT_MISSED = 3


def predict(root: Path, out: Path, *, seeds: int | None, steps: int | None, as_json: bool) -> None:
    """Fit, predict the runs on calibrated clusters, write `out`. Raises `ConfigError` when one has been made."""
    store, registry = Store(root, create=False), Registry()
    done = _done(store, STUDY)
    if done:
        raise ConfigError("a run that is to be predicted has been made", where=str(root), value=done[0].cell.label,
                          mend="predict before `libra run fidelity`, or predict other runs in a new store")  # fmt: skip
    runs = _calibrations(store, registry)
    tables = {name: _fit(list(parts.values())) for name, parts in runs.items()}
    spec: StudySpec = registry.get("study", STUDY)
    args = StudyArgs(seeds or spec.num_seeds, steps or spec.num_steps)
    cells = [cell for cell in spec.cells(args) if cell.cluster in tables]
    found = Predictions(
        commit=_commit(),
        machine=machine(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        num_draws=NUM_DRAWS,
        calibrated_on=tuple(cell.cell.label for cell in _done(store, CALIBRATION)),
        tables={name: msgspec.to_builtins(each) for name, each in tables.items()},
        residuals={name: _residual(list(runs[name].values()), each) for name, each in tables.items()},
        runs=tuple(_predicted(cell, registry, runs[cell.cluster], tables[cell.cluster]) for cell in cells),
    )
    write_bytes(out, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if as_json:
        return print_json(msgspec.to_builtins(found))
    rows = [
        (run.cell, f"{run.makespan_s:.1f}", f"{run.low_s:.1f} to {run.high_s:.1f}", f"{run.carried_s:.1f}",
         f"{run.tok_per_s:.1f}")
        for run in found.runs
    ]  # fmt: skip
    columns = ("run", "makespan (s)", "over draws (s)", "calibration's pace (s)", "token/s")
    console().print(table("predicted", columns, rows))
    console().print(f"\nwritten to {out}: commit it, then `libra run {STUDY}` and `libra fidelity compare {out}`")


def compare(root: Path, predictions: Path, *, as_json: bool) -> None:
    """Measured beside predicted, kept in the store for the report; exit 3 when the mean error is too large."""
    store, registry = Store(root, create=False), Registry()
    try:
        before = msgspec.json.decode(predictions.read_bytes(), type=Predictions)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"no predictions: {error}", where=str(predictions),
                          mend="`libra fidelity predict` writes them") from None  # fmt: skip
    runs = tuple(_measured(cell, registry) for cell in _done(store, STUDY))
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    found = Fidelity(before, _commit_of(predictions), _commit(), today, runs)
    write_bytes(root / FIDELITY_FILE, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    pairs = found.pairs()
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        rows = [
            (pair.measured.cell, f"{pair.predicted.makespan_s:.1f}", f"{pair.measured.makespan_s:.1f}",
             f"{pair.makespan_error:+.1%}", f"{pair.carried_error:+.1%}", f"{pair.predicted.tok_per_s:.1f}",
             f"{pair.measured.tok_per_s:.1f}", f"{pair.rate_error:+.1%}", pair.measured.replay)
            for pair in pairs
        ]  # fmt: skip
        columns = ("run", "predicted (s)", "measured (s)", "error", "of calibration's pace", "predicted (token/s)",
                   "measured (token/s)", "error", "replay")  # fmt: skip
        console().print(table("predicted against measured", columns, rows))
    if not pairs:
        raise ConfigError("no predicted run has been made", where=str(root), mend=f"libra run {STUDY}")
    off = mean_error([pair.makespan_error for pair in pairs])
    for line in found.said():
        console(err=as_json).print(f"\n{line}")
    console(err=as_json).print(f"\nmean error of the makespan {off:.1%}, allowed {MAX_ERROR:.0%}")
    if off > MAX_ERROR:
        sys.exit(EXIT_MISSED)


def _done(store: Store, study: str) -> list[StoredCell]:
    """Finished cells of a study; none of one that the store has never seen."""
    return [cell for cell in store.cells(study) if cell.status.state == "done"] if study in store.studies() else []


def _calibrations(store: Store, registry: Registry) -> dict[str, dict[int, Calibration]]:
    """By cluster and seed. Raises `ConfigError` without finished cells."""
    found: dict[str, dict[int, Calibration]] = {}
    for cell in _done(store, CALIBRATION):
        found.setdefault(cell.cell.cluster, {})[cell.cell.seed] = _calibration(cell, registry)
    if not found:
        raise ConfigError("no calibration run is in the store", where=str(store.root),
                          mend=f"libra run {CALIBRATION}")  # fmt: skip
    return found


def _calibration(stored: StoredCell, registry: Registry) -> Calibration:
    from libra.backends.sim.shared.fit import Calibration
    from libra.core.events import RunStart
    from libra.runtime.event_log import LOG_NAME
    from libra.runtime.recorded import trajectories, whole_groups
    from libra.runtime.replay import decisions

    log = list(decisions(stored.path / LOG_NAME))
    (run,) = (event for event, _ in log if isinstance(event, RunStart))
    groups = whole_groups(trajectories(log), run.group_size)
    return Calibration(
        _scene(stored.cell, registry), groups, run.batch // run.group_size, run.max_context_tok, run.profile,
        _steps(stored), [event for event, _ in log],
    )  # fmt: skip


def _scene(cell: Cell, registry: Registry) -> Scene:
    from experiments.resolve import Resolver
    from libra.backends.sim.shared.play import Scene

    setup = Resolver(registry).setup(cell)
    return Scene(setup.cluster, setup.model, setup.pipeline, setup.build_policy)


def _steps(stored: StoredCell) -> list[StepRow]:
    from libra.results.schemas import StepRow
    from libra.results.tables import read_table

    rows = read_table(stored.path, "steps").to_pylist()
    return sorted((msgspec.convert(row, StepRow) for row in rows), key=lambda row: row.step)


def _fit(runs: Sequence[Calibration]) -> Table:
    from libra.backends.sim.shared.fit import fit

    return fit(runs, f"{len(runs)} live run(s) of {sum(len(run.steps) for run in runs)} steps, {machine()}")


def _residual(runs: Sequence[Calibration], fitted: Table) -> float:
    """Signed mean relative error of the calibration runs' own makespans under the fitted table."""
    from libra.backends.sim.shared.observe import window
    from libra.backends.sim.shared.play import play

    pairs = [(window(play(run.scene, fitted, run.workload).steps)[0], window(run.steps)[0]) for run in runs]
    return sum(ours_s / theirs_s - 1.0 for ours_s, theirs_s in pairs) / len(pairs)


def _predicted(cell: Cell, registry: Registry, runs: Mapping[int, Calibration], fitted: Table) -> Predicted:
    """On what the calibration run of the same seed recorded, else the least one."""
    from libra.backends.sim.shared.observe import window
    from libra.backends.sim.shared.play import Recorded, drawn, play

    scene, steps = _scene(cell, registry), int(cell.override("live.num_steps") or 0)
    recorded = runs.get(cell.seed) or runs[min(runs)]
    spans = []
    for seed in range(NUM_DRAWS):
        groups = drawn(recorded.settled, recorded.prompts, steps + 1, seed)
        workload = Recorded(groups, recorded.prompts, steps, recorded.max_context_tok, recorded.shown)
        spans.append(window(play(scene, fitted, workload).steps))
    times, rates = [span_s for span_s, _ in spans], [tok / span_s for span_s, tok in spans]
    pace_s = mean(window(run.steps)[0] / (len(run.steps) - 1) for run in runs.values())
    return Predicted(cell.label, mean(times), mean(rates), min(times), max(times), pace_s * (steps - 1))


def _measured(stored: StoredCell, registry: Registry) -> MeasuredRun:
    from experiments.resolve import Resolver
    from libra.backends.sim.shared.observe import window
    from libra.runtime.replay import replay

    steps = _steps(stored)
    span_s, tok = window(steps)
    report = replay(stored.path, Resolver(registry).setup(stored.cell).build_policy)
    said = f"same {report.num_commands} commands" if report.same else f"differs after {report.num_commands} commands"
    return MeasuredRun(stored.cell.label, stored.id, len(steps), span_s, tok / span_s, said)


def _commit() -> str:
    from libra.results.provenance import provenance

    git = provenance()["git"]
    return "no checkout" if git is None else git["commit"][:12] + (" with changes" if git["dirty"] else "")


def _commit_of(path: Path) -> str:
    """The commit that last touched a file; "not committed" where there is none."""
    import subprocess

    command = ["git", "log", "-1", "--format=%h", "--", path.name]
    done = subprocess.run(command, cwd=path.resolve().parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not committed"
