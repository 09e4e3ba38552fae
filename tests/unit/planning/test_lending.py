"""Closed forms of lending against a plant that is played part by part, and rates that are learned from cycles."""

from __future__ import annotations

import random

import pytest

from libra.planning.lending import Cycle, Lender, Seen, cycle_s, samples_to_start
from tests.lending_plant import played_s


def drawn(seed: int) -> tuple[Cycle, float]:
    """A cycle and how many samples are there at its start."""
    draw = random.Random(seed)
    parts = draw.choice([1, 2, 4])
    cycle = Cycle(
        samples=parts * draw.randint(4, 64),
        parts=parts,
        train_s=draw.uniform(1, 300),
        alone_rate=draw.uniform(0.02, 2),
        lent_rate=draw.uniform(0.02, 2),
        enter_s=draw.uniform(0, 20),
        leave_s=draw.uniform(0, 20),
    )
    return cycle, draw.uniform(0, cycle.samples / 2)


@pytest.mark.parametrize("seed", range(200))
def test_the_closed_form_is_the_plants_time(seed: int) -> None:
    cycle, there = drawn(seed)
    assert cycle_s(cycle, there, lends=False) == pytest.approx(played_s(cycle, there, None))
    assert cycle_s(cycle, there, lends=True) == pytest.approx(played_s(cycle, there, samples_to_start(cycle)))


@pytest.mark.parametrize("seed", range(200))
def test_no_other_number_of_samples_ends_lending_better(seed: int) -> None:
    cycle, there = drawn(seed)
    least_s = cycle_s(cycle, there, lends=True)
    tried = [played_s(cycle, there, cycle.samples * share / 200) for share in range(261)]
    assert least_s <= min(tried) + 1e-9


def test_without_a_pool_of_its_own_a_cycle_never_ends_unlent() -> None:
    cycle = Cycle(8, 2, 10.0, alone_rate=0.0, lent_rate=2.0)
    assert cycle_s(cycle, 0, lends=False) == float("inf")
    assert samples_to_start(cycle) == 8
    assert cycle_s(cycle, 0, lends=True) == 14


def taught(cycle: Cycle) -> Lender:
    lender = Lender(cycle.samples, cycle.parts)
    assert not lender.should_lend(0), "a first cycle shows the pool alone"
    unlent_s = max(cycle.train_s, cycle.samples / cycle.alone_rate)
    lender.learn(Seen(unlent_s + 5, round(cycle.alone_rate * (unlent_s + 5)), unlent_s - cycle.train_s, 5.0, False))
    assert lender.should_lend(0), "a second one what lending adds"
    switch_s, lent_s = cycle.enter_s + cycle.leave_s, 400.0
    duration_s = switch_s + lent_s + cycle.train_s
    produced = cycle.alone_rate * duration_s + cycle.lent_rate * lent_s
    lender.learn(Seen(duration_s, round(produced), 0.0, 3.0, True, cycle.enter_s, cycle.leave_s))
    return lender


@pytest.mark.parametrize(("train_s", "lends"), [(50.0, True), (600.0, False)])
def test_rates_are_learned_and_a_training_bound_job_does_not_lend(train_s: float, lends: bool) -> None:
    truth = Cycle(128, 4, train_s, 0.25, 0.75, enter_s=4.0, leave_s=2.0)
    lender = taught(truth)
    assert lender.cycle is not None
    assert lender.cycle.train_s == pytest.approx(train_s)
    assert lender.cycle.alone_rate == pytest.approx(0.25, rel=0.01)
    assert lender.cycle.lent_rate == pytest.approx(0.75, rel=0.01)
    assert lender.should_lend(there=32) is lends


def play(lender: Lender, truth: Cycle, cycles: int, noise: random.Random | None = None) -> list[bool]:
    """Answers, cycle by cycle, of a job whose rates are `truth`, with as many samples there as none."""
    answers = []
    for _ in range(cycles):
        answers.append(lender.should_lend(0))
        start_at = lender.samples_to_start() if answers[-1] else None
        duration_s = played_s(truth, 0, start_at) * (noise.uniform(0.85, 1.15) if noise else 1)
        waited_s = 0.0 if answers[-1] else max(0.0, duration_s - truth.train_s)
        lent_s = duration_s - truth.train_s if answers[-1] else 0.0
        produced = round(truth.alone_rate * duration_s + truth.lent_rate * lent_s)
        lender.learn(Seen(duration_s, produced, waited_s, 0.0, answers[-1]))
    return answers


def test_steady_rates_are_measured_once_though_cycles_differ() -> None:
    truth = Cycle(128, 4, 50.0, 0.25, 0.75)
    answers = play(taught(truth), truth, 300, random.Random(0))
    assert all(answers)


def test_rates_that_change_are_seen_anew() -> None:
    truth = Cycle(128, 4, 50.0, 0.25, 0.75)
    lender = taught(truth)
    play(lender, truth, 5)
    longer = Cycle(128, 4, 150.0, 0.08, 0.25)
    answers = play(lender, longer, 12)
    assert answers.count(False) == 1, "one cycle shows training and the pool alone"
    assert lender.cycle is not None
    assert lender.cycle.train_s == pytest.approx(150)
    assert lender.cycle.lent_rate == pytest.approx(0.25, rel=0.05)
