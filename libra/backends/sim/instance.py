"""One rollout engine: continuous batching with chunked prefill, KV limit, preemption and a prefix cache.

Between events the engine is advanced in closed form: while nothing is prefilled, `k` decode steps over `B` sequences
with `K` KV tokens take `k (alpha + beta K) + beta B k (k-1) / 2` (time per step is linear in K), so no token is ever
simulated alone. A step that also holds prefill chunks is one event of its own.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable

from libra.backends.sim.checked_cache import make_cache
from libra.backends.sim.kv_cache import Prompt
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel
from libra.backends.sim.truth_ops import tile_area
from libra.core.errors import CapacityError


class Request:
    """One turn on an engine. `context_tok` must be in the KV cache, `remaining_tok` is still to be generated."""

    __slots__ = (
        "admitted",
        "arrived_s",
        "cached_tok",
        "context_tok",
        "done_tok",
        "eligible_at",
        "finish_at",
        "num_preemptions",
        "prefilled_tok",
        "prompt",
        "queue_s",
        "remaining_tok",
        "started",
        "trajectory",
    )

    def __init__(self, trajectory: int, prompt: Prompt, context_tok: int, generate_tok: int) -> None:
        self.trajectory, self.prompt = trajectory, prompt
        self.context_tok, self.remaining_tok = context_tok, generate_tok
        self.done_tok = self.finish_at = self.admitted = self.eligible_at = 0
        self.cached_tok = self.prefilled_tok = self.num_preemptions = 0
        self.arrived_s = self.queue_s = 0.0
        self.started = False

    @property
    def own_tok(self) -> int:
        return self.context_tok - self.prompt[1]


def check_fits(instance_id: int, model: StepModel, final_tok: int) -> None:
    """Raises `CapacityError` when a turn's final context can never fit the engine."""
    if final_tok > model.kv_capacity_tok:
        raise CapacityError(
            f"a context of {final_tok} tokens exceeds the KV cache of a TP-{model.tp} instance "
            f"({model.kv_capacity_tok} tokens)",
            where=f"instance {instance_id}",
            mend="use a larger tensor parallelism, a smaller model or a shorter length limit",
        )


class InPython:
    """What the fleet tells every engine and only the compiled one has to know."""

    def mark_leaving(self, is_leaving: bool) -> None:
        """The fleet waits until the engine is idle (or no longer does)."""

    def close(self) -> None:
        """The engine is idle and will never be used again."""


class Instance(InPython):
    """State of one engine. `on_done(instance, request)` is called when a turn has generated its last token."""

    def __init__(
        self,
        instance_id: int,
        step_model: StepModel,
        options: SimOptions,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        on_done: Callable[[Instance, Request], None],
    ) -> None:
        self.id, self.tp = instance_id, step_model.tp
        self.model, self.options = step_model, options
        self._now, self._schedule, self._on_done = now, schedule, on_done
        self.cache = make_cache(step_model.kv_capacity_tok, options)
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        self._running: list[tuple[int, int, Request]] = []
        """Heap of (step counter at which the turn ends, admission number, request)."""
        self._num_admitted = self._steps = self._kv_read_tok = 0
        self._segment_steps, self._segment_start_s = 0, 0.0
        self._boundary_s, self._epoch = math.inf, 0
        self._paused_until_s, self._recompute_asked = 0.0, False
        self._at_rest = True
        """No step is scheduled ahead: the engine was idle or paused."""
        self.busy_s = 0.0
        self.num_arriving = 0
        """Turns whose KV is being transferred here."""

    @property
    def is_idle(self) -> bool:
        """No turn here, and none whose KV is on its way."""
        return not (self._has_work or self.num_arriving)

    @property
    def _has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self._running)

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises `CapacityError` when its final context can never fit this engine."""
        check_fits(self.id, self.model, request.context_tok + request.remaining_tok + 1)
        request.arrived_s = self._now()
        self.waiting.append(request)
        if not self._at_rest:
            request.eligible_at = self._next_step() + self.options.async_lag_steps
        if self._boundary_s == math.inf:
            self._set_boundary(max(self._now(), self._paused_until_s))
        else:
            self._cut_segment(request.eligible_at)

    def update_weights(self, until_s: float, *, recompute: bool) -> None:
        """Stop at the next step boundary until `until_s`. Prefixes are dropped unless the options keep them; turns in
        flight re-prefill if asked."""
        self._paused_until_s = until_s
        if not self.options.keep_prefixes:
            self.cache.reset()
        self._recompute_asked = recompute
        if self._boundary_s < math.inf:
            self._cut_segment(self._next_step())

    # -- time ------------------------------------------------------------------------------------------------------

    def _set_boundary(self, t_s: float) -> None:
        self._epoch += 1
        epoch = self._epoch
        self._boundary_s = t_s
        self._schedule(t_s, lambda: self._boundary(epoch))

    def _next_step(self) -> int:
        """Number of the first step boundary at or after now."""
        if self._segment_steps > 1:
            return self._steps + self._steps_until(self._now() - self._segment_start_s)
        return self._steps + self._segment_steps

    def _cut_segment(self, at_step: int) -> None:
        """End a pure-decode segment at a step boundary, if it is longer."""
        steps = at_step - self._steps
        if self._segment_steps > max(1, steps):
            self._segment_steps = steps
            self._set_boundary(self._segment_start_s + self._decode_s(steps))

    def _decode_s(self, steps: int) -> float:
        num, model = len(self._running), self.model
        first = model.alpha(num) + model.beta * self._kv_read_tok
        return steps * first + model.beta * num * steps * (steps - 1) / 2

    def _steps_until(self, elapsed_s: float) -> int:
        """Smallest number of steps (at least 1) that takes `elapsed_s` or longer: root of the quadratic, then exact."""
        num, model = len(self._running), self.model
        half = model.beta * num / 2
        linear = model.alpha(num) + model.beta * self._kv_read_tok - half
        root = 2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * elapsed_s))
        steps = max(1, math.floor(root))
        while self._decode_s(steps) < elapsed_s:
            steps += 1
        return steps

    def _boundary(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        now = self._now()
        self._boundary_s = math.inf
        if self._segment_steps:
            self.busy_s += now - self._segment_start_s
            steps, self._segment_steps = self._segment_steps, 0
            self._advance(steps)
        if self._recompute_asked:
            self._recompute_asked = False
            self._recompute_in_flight()
        self._at_rest = self._at_rest or not self._has_work or now < self._paused_until_s
        if self._boundary_s < math.inf or not self._has_work:
            return
        if now < self._paused_until_s:
            self._set_boundary(self._paused_until_s)
        else:
            self._start_segment(now)

    def _start_segment(self, now: float) -> None:
        self._admit()
        if self.options.check:
            self._check()
        self._make_room()
        if self.prefilling:
            self._begin_mixed(now)
        else:
            num = len(self._running)
            steps = min(self._running[0][0] - self._steps, max(1, self.cache.room_tok // num))
            if self.waiting and self.waiting[0].eligible_at > self._steps:
                steps = min(steps, self.waiting[0].eligible_at - self._steps)
            self._begin(now, steps, self._decode_s(steps))

    def _begin(self, now: float, steps: int, duration_s: float) -> None:
        self._segment_start_s, self._segment_steps, self._at_rest = now, steps, False
        self._set_boundary(now + duration_s)

    def _begin_mixed(self, now: float) -> None:
        """One step with prefill chunks: decode tokens first, then the queue's chunks up to the token budget."""
        budget = max(self.options.block_tok, self.options.max_batched_tok - len(self._running))
        chunk_tok, area, longest_tok = 0, 0, self._longest_running_tok()
        for request in self.prefilling:
            take = min(request.context_tok - request.done_tok, budget - chunk_tok)
            if take <= 0:
                break
            if not request.started:
                request.started = True
                request.queue_s += now - request.arrived_s
            area += tile_area(request.done_tok, take)
            request.done_tok += take
            longest_tok = max(longest_tok, request.done_tok)
            request.prefilled_tok += take
            chunk_tok += take
        seconds = self.model.mixed_s(chunk_tok, area, longest_tok, len(self._running), self._kv_read_tok)
        self._begin(now, 1, seconds)

    def _longest_running_tok(self) -> int:
        """The longest context that decodes. A turn's grows with the steps until it ends."""
        steps = self._steps
        return max((r.context_tok + r.remaining_tok - (end - steps) for end, _, r in self._running), default=0)

    # -- tokens ----------------------------------------------------------------------------------------------------

    def _advance(self, steps: int) -> None:
        """Account for engine steps: tokens decoded, prefills finished, turns over."""
        num = len(self._running)
        self._steps += steps
        self._kv_read_tok += num * steps
        self.cache.take(num * steps)
        finished = []
        while self._running and self._running[0][0] <= self._steps:
            request = heapq.heappop(self._running)[2]
            self._settle(request)
            self._kv_read_tok -= request.context_tok
            finished.append(request)
        while self.prefilling and self.prefilling[0].done_tok == self.prefilling[0].context_tok:
            request = self.prefilling.popleft()
            request.context_tok += 1
            request.remaining_tok -= 1
            if request.remaining_tok:
                self._run(request)
            else:
                finished.append(request)
        for request in finished:
            self.cache.close(request.trajectory, request.prompt, request.own_tok)
        for request in finished:
            self._on_done(self, request)

    def _run(self, request: Request) -> None:
        request.finish_at = self._steps + request.remaining_tok
        heapq.heappush(self._running, (request.finish_at, request.admitted, request))
        self._kv_read_tok += request.context_tok

    def _settle(self, request: Request) -> None:
        """Bring a running request's counts up to the step counter."""
        left = max(0, request.finish_at - self._steps)
        request.context_tok += request.remaining_tok - left
        request.remaining_tok = left

    def _admit(self) -> None:
        """First come, first served: a turn enters when its whole context and one new token fit. The step after this
        boundary was scheduled while the last one ran, unless nothing was there to schedule."""
        is_free = self._at_rest or not (self._running or self.prefilling)
        while self.waiting and len(self._running) + len(self.prefilling) < self.options.max_num_seqs:
            request = self.waiting[0]
            if not is_free and request.eligible_at > self._steps:
                return
            hit = self.cache.open(request.trajectory, request.prompt, request.context_tok)
            if hit is None:
                return
            self.waiting.popleft()
            self._num_admitted += 1
            request.admitted = self._num_admitted
            request.done_tok = hit
            request.cached_tok += hit
            self.prefilling.append(request)

    def _make_room(self) -> None:
        """Preempt the newest running turns until the rest can grow by one token each (vLLM: recompute later)."""
        while self.cache.room_tok < len(self._running):
            newest = max(self._running, key=lambda entry: entry[1])
            self._running.remove(newest)
            heapq.heapify(self._running)
            request = newest[2]
            self._settle(request)
            self._kv_read_tok -= request.context_tok
            request.num_preemptions += 1
            self._requeue(request, reusable=True)

    def _requeue(self, request: Request, *, reusable: bool) -> None:
        self.cache.close(request.trajectory, request.prompt, request.own_tok, reusable=reusable)
        request.arrived_s, request.started, request.done_tok, request.eligible_at = self._now(), False, 0, 0
        self.waiting.appendleft(request)

    def _recompute_in_flight(self) -> None:
        """All turns in flight lose their KV and queue again, oldest first (weights changed)."""
        for _, _, request in self._running:
            self._settle(request)
        self.cache.give_back(len(self.prefilling))
        victims = sorted([*(entry[2] for entry in self._running), *self.prefilling], key=lambda r: -r.admitted)
        self._running.clear()
        self.prefilling.clear()
        self._kv_read_tok = 0
        for request in victims:
            self._requeue(request, reusable=False)

    def _check(self) -> None:
        for _, _, request in self._running:
            assert request.finish_at > self._steps, "a turn ends in the future"
        running_own = sum(
            r.context_tok + r.remaining_tok - (r.finish_at - self._steps) - r.prompt[1] for _, _, r in self._running
        )
        self.cache.check(running_own + sum(r.own_tok + 1 for r in self.prefilling))
        assert self._kv_read_tok == running_own + sum(r.prompt[1] for _, _, r in self._running), "KV read"
