"""Libra's answer to verl's hybrid replicas: `async_training.dynamic_schedule_policy=libra` in a fully asynchronous job.

verl (experimental/fully_async_policy/dynamic_schedule) asks once a weight sync whether the trainer's GPUs should
generate, and how many samples end that. Its own policy raises and lowers a ratio; ours computes both from the rates
that it has seen (`libra.planning.lending`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil

from verl.experimental.fully_async_policy.dynamic_schedule import (
    DynamicScheduleContext,
    DynamicSchedulePolicyBase,
    register_policy,
)

from libra.planning.lending import Lender, Seen


@register_policy("libra")
class LibraSchedule(DynamicSchedulePolicyBase):
    """A cycle goes from one question whether to lend to the next.

    `deactivate_ratio` is verl's starting point for its own policy and not looked at. With `only_hybrid` nothing else
    generates: every cycle is lent until a whole batch is there.
    """

    def __init__(
        self,
        deactivate_ratio: float = 0.3,
        only_hybrid: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._only_hybrid, self._clock = only_hybrid, clock
        self._lender: Lender | None = None
        self._began_s: float | None = None
        self._synced_s: float | None = None
        self._other_s = self._enter_s = 0.0
        self._produced = 0
        self._is_lent = False

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext) -> bool:
        """Always before training, which needs the GPUs."""
        if self._synced_s is not None:
            self._other_s, self._synced_s = self._clock() - self._synced_s, None
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        if self._only_hybrid or self._lender is None:
            return int(ctx.step_required_samples)
        return min(int(ctx.step_required_samples), ceil(self._lender.samples_to_start()))

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        now_s, lender = self._clock(), self._lender
        if lender is None:
            lender = self._lender = Lender(ctx.step_required_samples, ctx.trigger_parameter_sync_step)
        if self._began_s is not None:
            lender.learn(
                Seen(
                    now_s - self._began_s, ctx.total_generated_samples - self._produced, sum(ctx.step_wait_times),
                    self._other_s, self._is_lent, self._enter_s, ctx.last_deactivate_duration_s,
                )
            )  # fmt: skip
        self._began_s, self._produced, self._other_s = now_s, ctx.total_generated_samples, 0.0
        there = ctx.total_generated_samples - ctx.expected_samples
        self._is_lent = self._only_hybrid or lender.should_lend(there)
        return self._is_lent

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """Called once weights are there and replicas are up."""
        self._synced_s, self._enter_s = self._clock(), ctx.last_activate_duration_s
