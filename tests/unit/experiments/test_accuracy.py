"""The planner's estimate against the simulator on a dozen of the benchmark's configurations, reduced for CI."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from experiments.accuracy.cases import Case, draw_case
from experiments.accuracy.judge import Judged, errors, learn
from experiments.accuracy.measure import Measured, margins, measure
from experiments.accuracy.store import kept
from experiments.accuracy.worlds import WORLDS
from libra.core.errors import CapacityError
from libra.cost.rates import Rates

SEED = 7
NUM_KNOWN, NUM_JUDGED = 6, 12
STEPS = 8
MOST_MEAN, MOST = 0.06, 0.20
"""The benchmark's 100 configurations of 32 steps err by some 3 % on average; these are shorter, and fewer teach."""


def small_cases() -> list[Case]:
    found = (draw_case(SEED, index) for index in range(200))
    return [case for case in found if case.job.batch <= 128][: NUM_KNOWN + NUM_JUDGED]


@pytest.fixture(scope="module")
def judged() -> list[Judged]:
    return [Judged(case, measure(case, STEPS, WORLDS["base"].sim_options())) for case in small_cases()]


@pytest.mark.slow
def test_the_estimate_meets_the_simulator(judged: list[Judged]) -> None:
    """Errors stay small after calibration on others, and grow with every part that is left out."""
    rates, others = learn(judged[:NUM_KNOWN]), judged[NUM_KNOWN:]
    measured_s = [each.measured.mean("step_s") for each in others]

    def judge(which: Rates) -> float:
        return errors([each.step_s(which, is_blind=False) for each in others], measured_s).mean

    found = errors([each.step_s(rates, is_blind=False) for each in others], measured_s)
    assert found.mean < MOST_MEAN
    assert found.largest < MOST
    assert found.spearman > 0.95
    for left_out in ({"train_fixed_s": 0.0}, {"switch_s": 0.0}, {"step_s": 1e-9}):
        assert judge(msgspec.structs.replace(rates, **left_out)) > 1.2 * found.mean, left_out


def test_cases_depend_on_seed_and_number_alone() -> None:
    assert draw_case(1, 3) == draw_case(1, 3)
    assert draw_case(1, 3) != draw_case(1, 4)
    assert draw_case(1, 3) != draw_case(2, 3)


def test_warm_up_and_run_out_are_as_long_as_the_pipeline() -> None:
    case = draw_case(1, 0)

    def of(kind: str, staleness: int) -> tuple[int, int]:
        pipeline = msgspec.structs.replace(case.job.pipeline, kind=kind, staleness=staleness)
        return margins(msgspec.structs.replace(case, job=msgspec.structs.replace(case.job, pipeline=pipeline)))

    assert (of("colocated", 0), of("barrier", 1), of("async", 0), of("async", 4)) == ((0, 0), (3, 2), (1, 1), (9, 5))


def test_errors_of_known_numbers() -> None:
    found = errors([10.4, 18.4, 30.0], [10.0, 20.0, 30.0])
    assert (found.mean, found.largest, found.median) == pytest.approx((0.04, 0.08, 0.04))
    assert (found.within_5, found.within_10, found.bias) == pytest.approx((2 / 3, 1.0, -0.04 / 3))
    assert (found.spearman, found.kendall) == pytest.approx((1.0, 1.0))


def test_a_measurement_is_kept_and_a_refusal_too(tmp_path: Path) -> None:
    case, calls = draw_case(1, 0), []

    def refuse() -> Measured:
        calls.append(1)
        raise CapacityError("no room")

    for _ in range(2):
        assert kept(tmp_path, "sources", case, WORLDS["base"], 4, refuse) is None
    assert len(calls) == 1
    assert kept(tmp_path, "other sources", case, WORLDS["base"], 4, refuse) is None
    assert len(calls) == 2


def test_every_world_differs_from_the_base() -> None:
    base = WORLDS["base"]
    for name, world in WORLDS.items():
        assert world.name == name
        assert name == "base" or (world.options, world.tail) != (base.options, base.tail)
