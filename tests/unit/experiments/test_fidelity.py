"""`libra fidelity` from end to end, on cells that the simulator made with a known table in the place of live ones."""

from __future__ import annotations

import json
import time
from pathlib import Path

import msgspec
import pytest

from analysis.fidelity import Predictions
from experiments.commands import fidelity
from experiments.resolve import Resolver
from libra.backends.sim.engine import make_simulator
from libra.backends.sim.options import SimOptions
from libra.backends.sim.shared.play import Recorded
from libra.backends.sim.shared.table import Engine, Table, Trainer
from libra.core.errors import ConfigError
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import Registry, StudyArgs
from libra.core.rng import stream
from libra.results.cell import Cell
from libra.results.store import FIDELITY_FILE, Store
from libra.runtime.controller import Controller
from libra.runtime.recorder import FileRecorder

TABLE = Table("a test", 1.6, Engine(0.007, 0.0003, 0.00007), Trainer(0.5, 0.0002), 0.003, 0.007, 0.15, 0.2)
STEPS = 6
REGISTRY = Registry()


def group(number: int) -> tuple[Trajectory, ...]:
    rng = stream("fidelity test", number)

    def one(sample: int) -> Trajectory:
        back = ToolReturn("search", 20, "ok", 0.05)
        calls = [Turn(int(rng.integers(5, 20)), back) for _ in range(rng.integers(0, 3))]
        return Trajectory(f"p{number}", number, sample, 10, (*calls, Turn(int(rng.integers(3, 25)))))

    return tuple(one(sample) for sample in range(8))


def cells(study: str, steps: int = STEPS) -> list[Cell]:
    return list(REGISTRY.get("study", study).cells(StudyArgs(1, steps)))


def make(store: Store, cell: Cell, first_group: int) -> None:
    """A finished cell as `libra run` leaves it behind, but for the backend that ran."""
    setup = Resolver(REGISTRY).setup(cell)
    groups = [group(first_group + number) for number in range(8 * (STEPS + 2))]
    workload = Recorded(groups, 8, STEPS, 512, groups[0])
    options = SimOptions(table=msgspec.json.encode(TABLE).decode())
    with store.claim(cell, "code") as cell_dir:
        cell_dir.start()
        recorder = FileRecorder(cell_dir, setup.cluster.num_gpus, setup.pipeline)
        simulator = make_simulator(setup.cluster, setup.model, workload, setup.pipeline, options=options)
        simulator.run(Controller(setup.build_policy(), recorder, clock=time.perf_counter))
        recorder.finish(1.0)
        cell_dir.set("done")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "runs")
    calibration = cells("fidelity_calibration")
    for number, cell in enumerate(calibration):
        make(made, cell, 1000 * number)
    made.add_to_study("fidelity_calibration", [(cell, "code") for cell in calibration])
    return made


@pytest.mark.slow
def test_predictions_come_first_and_are_met(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "predictions.json"
    fidelity.predict(store.root, out, seeds=1, steps=STEPS, as_json=False)
    before = msgspec.json.decode(out.read_bytes(), type=Predictions)
    wanted = cells("fidelity")
    assert [run.cell for run in before.runs] == [cell.label for cell in wanted]
    assert max(map(abs, before.residuals.values())) < 0.02
    for cell in wanted[:3]:
        make(store, cell, 50_000)
    store.add_to_study("fidelity", [(cell, "code") for cell in wanted[:3]])
    with pytest.raises(ConfigError, match="a run that is to be predicted has been made"):
        fidelity.predict(store.root, out, seeds=1, steps=STEPS, as_json=False)
    capsys.readouterr()
    fidelity.compare(store.root, out, as_json=False)
    said = capsys.readouterr().out
    assert said.count("same ") == 3
    found = json.loads((store.root / FIDELITY_FILE).read_bytes())
    assert found["predictions_commit"] == "not committed"
    assert len(found["runs"]) == 3


def test_without_calibration_there_is_no_prediction(tmp_path: Path) -> None:
    root = Store(tmp_path / "runs").root
    with pytest.raises(ConfigError, match="no calibration run is in the store"):
        fidelity.predict(root, tmp_path / "out.json", seeds=None, steps=None, as_json=False)
