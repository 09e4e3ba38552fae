"""Bookkeeping of a run: what each training step and each trajectory leaves behind as a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from libra.backends.sim.rollout import Live
from libra.core.plan import TrainLayout
from libra.results.schemas import StepRow, TrajectoryRow


@dataclass(frozen=True)
class Totals:
    """Running sums since the start of the run; a step is the difference of two."""

    t_s: float = 0.0
    rollout_pool_gpu_s: float = 0.0
    train_pool_gpu_s: float = 0.0
    rollout_busy_gpu_s: float = 0.0
    rollout_idle_s: float = 0.0
    """Time without any live trajectory, weight syncs included."""
    moving_gpu_s: float = 0.0
    num_preemptions: int = 0


@dataclass
class StepBooks:
    """One step in the making: where it started and what its training took."""

    opened: Totals
    train_s: float = 0.0
    sync_s: float = 0.0
    layout: TrainLayout | None = None
    version: int = 0
    """Policy version that the batch's gradient starts from."""

    def row(
        self, step: int, batch: Sequence[Live], closed: Totals, rollout_gpus: int, num_hybrid_training: int
    ) -> StepRow:
        assert self.layout is not None, "a step was trained"
        opened = self.opened
        first_s = min(live.start_s for live in batch)
        ends_s = sorted(live.end_s for live in batch)
        staleness = [self.version - live.version_start for live in batch]
        return StepRow(
            step=step,
            start_s=opened.t_s,
            end_s=closed.t_s,
            rollout_s=ends_s[-1] - first_s,
            rollout_90_s=ends_s[math.ceil(0.9 * len(ends_s)) - 1] - first_s,
            train_s=self.train_s,
            sync_s=self.sync_s,
            wait_rollout_s=max(0.0, closed.t_s - opened.t_s - self.train_s - self.sync_s),
            wait_train_s=max(0.0, closed.rollout_idle_s - opened.rollout_idle_s - self.sync_s),
            num_trajectories=len(batch),
            prompt_tok=sum(live.record.prompt_tok for live in batch),
            generated_tok=sum(live.record.generated_tok for live in batch),
            observed_tok=sum(live.record.observed_tok for live in batch),
            max_total_tok=max(live.context_tok for live in batch),
            train_gpus=self.layout.num_gpus,
            rollout_gpus=rollout_gpus,
            num_hybrid_training=num_hybrid_training,
            rollout_pool_gpu_s=closed.rollout_pool_gpu_s - opened.rollout_pool_gpu_s,
            train_pool_gpu_s=closed.train_pool_gpu_s - opened.train_pool_gpu_s,
            rollout_busy_gpu_s=closed.rollout_busy_gpu_s - opened.rollout_busy_gpu_s,
            train_busy_gpu_s=self.train_s * self.layout.num_gpus,
            moving_gpu_s=closed.moving_gpu_s - opened.moving_gpu_s,
            num_preemptions=closed.num_preemptions - opened.num_preemptions,
            max_staleness=max(staleness),
            mean_staleness=sum(staleness) / len(staleness),
        )


def trajectory_row(live: Live, step: int, version_trained: int) -> TrajectoryRow:
    """Row of a trajectory that was trained in `step`."""
    record = live.record
    return TrajectoryRow(
        trajectory=live.id,
        prompt_id=record.prompt_id,
        group=record.group,
        sample=record.sample,
        meant_step=live.meant_step,
        trained_step=step,
        status=record.status,
        prompt_tok=record.prompt_tok,
        generated_tok=record.generated_tok,
        observed_tok=record.observed_tok,
        num_turns=live.turn,
        tool_s=live.tool_s,
        reward=record.reward,
        start_s=live.start_s,
        end_s=live.end_s,
        first_instance=live.first_instance,
        last_instance=live.instance,
        first_bucket=live.first_bucket,
        last_bucket=live.last_bucket,
        num_moves=live.num_moves,
        moved_tok=live.moved_tok,
        prefilled_tok=live.prefilled_tok,
        cached_tok=live.cached_tok,
        num_preemptions=live.num_preemptions,
        queue_s=live.queue_s,
        version_start=live.version_start,
        version_end=live.version_end,
        version_trained=version_trained,
    )
