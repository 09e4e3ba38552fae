"""verl's dynamic schedule: our policy under verl's name, asked as verl's trainer asks, beside verl's own policy."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from libra.planning.lending import Cycle
from tests.lending_plant import Plant

CYCLES, SETTLED = 60, 20
ROLLOUT_BOUND = Cycle(128, 4, 60.0, 0.25, 0.75, enter_s=6.0, leave_s=3.0)
TRAINING_BOUND = Cycle(128, 4, 600.0, 0.25, 0.75, enter_s=6.0, leave_s=3.0)


def policy_of(name: str, plant: Plant) -> Any:
    from verl.experimental.fully_async_policy.dynamic_schedule import build_policy

    policy = build_policy(name, deactivate_ratio=0.3, only_hybrid=False)
    policy._clock = plant.clock
    return policy


def play(name: str, truth: Cycle, validate_s: float = 0.0) -> Plant:
    """The calls of `FullyAsyncTrainer.fit_step` and `_fit_update_weights`, in their order."""
    from verl.experimental.fully_async_policy.dynamic_schedule import DynamicScheduleContext

    plant = Plant(truth, validate_s)
    policy = policy_of(name, plant)
    ctx = DynamicScheduleContext(truth.samples // truth.parts, truth.parts, 0, 0, 0)
    is_active, began_s = False, 0.0
    for step in range(1, CYCLES + 1):
        waits: list[tuple[float, int]] = []
        for _ in range(truth.parts):
            if policy.should_deactivate(step, is_active, ctx):
                missing = max(0.0, policy.deactivate_wait_samples(ctx) - (plant.produced - plant.used))
                plant.generate(missing / (truth.alone_rate + truth.lent_rate), lent=True)
                plant.generate(truth.leave_s)
                ctx.last_deactivate_duration_s += truth.leave_s
                is_active = False
            waits.append(plant.part())
        ctx.total_generated_samples, ctx.expected_samples = int(plant.produced), step * truth.samples
        ctx.step_wait_times, ctx.step_wait_samples = [wait for wait, _ in waits], [count for _, count in waits]
        is_active = policy.should_activate_after_step(step, is_active, ctx)
        plant.lent.append(is_active)
        if is_active:
            plant.generate(truth.enter_s)
            ctx.last_activate_duration_s += truth.enter_s
        policy.update_after_step(step, ctx)
        ctx.last_activate_duration_s = ctx.last_deactivate_duration_s = 0.0
        plant.generate(validate_s, lent=is_active)
        plant.cycles_s.append(plant.now_s - began_s)
        began_s = plant.now_s
    return plant


def mean_s(plant: Plant) -> float:
    return sum(plant.cycles_s[SETTLED:]) / (CYCLES - SETTLED)


@pytest.mark.parametrize("validate_s", [0.0, 30.0])
def test_a_rollout_bound_job_lends_and_no_policy_of_verl_is_faster(validate_s: float) -> None:
    ours = play("libra", ROLLOUT_BOUND, validate_s)
    assert sum(ours.lent[SETTLED:]) >= 0.9 * (CYCLES - SETTLED)
    assert mean_s(ours) <= 1.02 * mean_s(play("default", ROLLOUT_BOUND, validate_s))
    assert mean_s(ours) < 0.5 * mean_s(play("static_fully_async", ROLLOUT_BOUND, validate_s))


def test_a_training_bound_job_keeps_its_devices() -> None:
    ours = play("libra", TRAINING_BOUND)
    assert not any(ours.lent[SETTLED:])
    assert mean_s(ours) == pytest.approx(TRAINING_BOUND.train_s)


def test_a_job_whose_devices_all_train_lends_every_cycle_until_its_batch_is_there() -> None:
    from verl.experimental.fully_async_policy.dynamic_schedule import DynamicScheduleContext, build_policy

    policy = build_policy("libra", deactivate_ratio=0.3, only_hybrid=True)
    ctx = DynamicScheduleContext(32, 4, 0, 0, 0, only_hybrid=True)
    for step in range(3):
        assert policy.should_activate_after_step(step, False, ctx)
        policy.update_after_step(step, ctx)
        assert policy.should_deactivate(step, True, ctx)
        assert policy.deactivate_wait_samples(ctx) == 128
