from __future__ import annotations

import msgspec
import pytest

from libra.core.events import StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.core.policy import Statistics
from libra.cost.rates import Rates
from libra.planning.calibrate import Run, calibrate

TRUE = Rates(memory=0.5, step_s=2e-3, train=0.35, train_fixed_s=8.0, sync_fixed_s=1.5)
LAYOUTS = ((1, TrainLayout(tp=4, dp=4)), (2, TrainLayout(tp=2, dp=8)), (8, TrainLayout(tp=8, dp=1)))


def lived(cluster: Cluster, model: Model, asked: Statistics, tp: int, train: TrainLayout) -> Run:
    """A run whose steps took what the estimate expects with the true rates."""
    plan = Plan(train, tuple(InstanceSpec(i, tp) for i in range(32 // tp)), (40960,))
    run = Run(cluster, model, plan, asked)
    expected = run.estimate(TRUE)
    sync_s = run.predicted(TRUE)[1]
    step = StepEnd(0.0, 0, expected.rollout_s, expected.train_s, sync_s, expected.step_s, 1, train, train.dp)
    return Run(cluster, model, plan, msgspec.structs.replace(asked, steps=(step,) * 3))


@pytest.fixture
def runs(cluster: Cluster, model: Model, statistics) -> list[Run]:
    return [
        lived(cluster, model, statistics(batch, seed=seed, kind=kind), tp, train)
        for seed, (batch, kind) in enumerate([(48, "barrier"), (256, "barrier"), (96, "async")])
        for tp, train in LAYOUTS
    ]


def test_other_layouts_are_foretold_from_a_few_runs(
    cluster: Cluster, model: Model, statistics, runs: list[Run]
) -> None:
    rates = calibrate(runs)
    other = lived(cluster, model, statistics(128, seed=9), 4, TrainLayout(tp=4, dp=2))
    before, after = (other.estimate(each).step_s / other.estimate(TRUE).step_s - 1 for each in (Rates(), rates))
    assert abs(before) > 0.05
    assert abs(after) < 0.01
    assert rates.train_fixed_s == pytest.approx(8.0, rel=0.1)


def test_a_run_without_rollout_times_still_tells_training(cluster: Cluster, model: Model, runs: list[Run]) -> None:
    asynchronous = [run for run in runs if run.statistics.run.pipeline.kind == "async"]
    assert calibrate(asynchronous).train_fixed_s == pytest.approx(8.0, rel=0.2)
