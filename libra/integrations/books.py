"""Bookkeeping of a live run: which engines work, how long nothing runs, and the row of each step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from libra.core.plan import Plan
from libra.integrations.turns import Live, StepDone
from libra.results.schemas import StepRow


class Books:
    """Times in seconds since the run's start. `open_step` of the first step is at 0."""

    def __init__(self) -> None:
        self.working: Counter[int] = Counter()
        """Turns under way on each instance."""
        self._sizes: Mapping[int, int] = {}
        self._step_began_s = 0.0
        self._busy_since_s: dict[int, float] = {}
        self._busy_gpu_s = self._idle_s = 0.0
        self._idle_since_s: float | None = 0.0

    def planned(self, plan: Plan) -> None:
        self._sizes = {each.id: each.tp for each in plan.instances}

    def resume(self, now_s: float) -> None:
        """A step begins here, and nothing runs."""
        self._step_began_s = self._idle_since_s = now_s

    def begin(self, instance: int, now_s: float) -> None:
        """A turn starts; so the rollout is not idle."""
        if self._idle_since_s is not None:
            self._idle_s += now_s - self._idle_since_s
            self._idle_since_s = None
        self.working[instance] += 1
        self._busy_since_s.setdefault(instance, now_s)

    def finish(self, instance: int, now_s: float) -> None:
        if self.working[instance] == 0:
            return
        self.working[instance] -= 1
        if self.working[instance] == 0:
            self._charge(instance, now_s)
            del self._busy_since_s[instance]

    def stop_all(self, instance: int, now_s: float) -> None:
        """An engine is gone, and every turn on it."""
        if self.working.pop(instance, 0):
            self._charge(instance, now_s)
            del self._busy_since_s[instance]

    def idle(self, now_s: float) -> None:
        """No trajectory is live."""
        self._idle_since_s = now_s

    def close_step(self, done: StepDone, batch: Sequence[Live], plan: Plan, now_s: float) -> StepRow:
        """The row of a step that ends now; the next one starts."""
        for instance in list(self._busy_since_s):
            self._charge(instance, now_s)
        if self._idle_since_s is not None:
            self._idle_s += now_s - self._idle_since_s
            self._idle_since_s = now_s
        ends_s = sorted(live.end_s for live in batch)
        first_s, wall_s = min(live.start_s for live in batch), now_s - self._step_began_s
        staleness = [done.version - min(live.versions) for live in batch if live.versions] or [0]
        rollout_gpus, train_gpus = plan.rollout_gpus, plan.train.num_gpus
        row = StepRow(
            step=done.step, start_s=self._step_began_s, end_s=now_s, rollout_s=ends_s[-1] - first_s,
            rollout_90_s=ends_s[math.ceil(0.9 * len(ends_s)) - 1] - first_s, train_s=done.train_s, sync_s=done.sync_s,
            wait_rollout_s=done.wait_rollout_s, wait_train_s=max(0.0, self._idle_s - done.sync_s),
            num_trajectories=len(batch), prompt_tok=sum(live.prompt_tok for live in batch),
            generated_tok=sum(live.generated_tok for live in batch),
            observed_tok=sum(live.observed_tok for live in batch),
            max_total_tok=max(live.total_tok for live in batch), train_gpus=train_gpus, rollout_gpus=rollout_gpus,
            num_hybrid_training=0, rollout_pool_gpu_s=wall_s * rollout_gpus, train_pool_gpu_s=wall_s * train_gpus,
            rollout_busy_gpu_s=self._busy_gpu_s, train_busy_gpu_s=done.train_s * train_gpus, moving_gpu_s=0.0,
            num_preemptions=sum(live.num_preemptions for live in batch), max_staleness=max(staleness),
            mean_staleness=sum(staleness) / len(staleness),
        )  # fmt: skip
        self._step_began_s, self._busy_gpu_s, self._idle_s = now_s, 0.0, 0.0
        return row

    def _charge(self, instance: int, until_s: float) -> None:
        self._busy_gpu_s += (until_s - self._busy_since_s[instance]) * self._sizes[instance]
        self._busy_since_s[instance] = until_s
