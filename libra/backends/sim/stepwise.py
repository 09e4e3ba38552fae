"""The engine once more, slow and obvious: every step is an event of its own and every token is counted alone.

It has the semantics of `Instance` without its closed forms, and stands beside it as the oracle of the fast engine
(`sim.engine=stepwise`). They share the KV cache and the step model, nothing else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from libra.backends.sim.checked_cache import make_cache
from libra.backends.sim.instance import InPython, Request, check_fits
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel
from libra.backends.sim.truth_ops import tile_area


class StepwiseInstance(InPython):
    """State of one engine; see `Instance` for what its methods promise."""

    def __init__(
        self,
        instance_id: int,
        step_model: StepModel,
        options: SimOptions,
        now: Callable[[], float],
        schedule: Callable[[float, Callable[[], None]], None],
        on_done: Callable[[StepwiseInstance, Request], None],
    ) -> None:
        self.id, self.tp = instance_id, step_model.tp
        self.model, self.options = step_model, options
        self._now, self._schedule, self._on_done = now, schedule, on_done
        self.cache = make_cache(step_model.kv_capacity_tok, options)
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        self.running: list[Request] = []
        self._num_admitted = self._steps = 0
        self._step_start_s = math.nan
        """Start of the step that runs; NaN between steps."""
        self._boundary_is_set = False
        self._paused_until_s, self._recompute_asked = 0.0, False
        self._at_rest = True
        self.busy_s = 0.0
        self.num_arriving = 0

    @property
    def is_idle(self) -> bool:
        return not (self._has_work or self.num_arriving)

    @property
    def _has_work(self) -> bool:
        return bool(self.waiting or self.prefilling or self.running)

    def submit(self, request: Request) -> None:
        check_fits(self.id, self.model, request.context_tok + request.remaining_tok + 1)
        request.arrived_s = self._now()
        self.waiting.append(request)
        if not self._at_rest:
            is_stepping = not math.isnan(self._step_start_s)
            request.eligible_at = self._steps + is_stepping + self.options.async_lag_steps
        if not self._boundary_is_set:
            self._set_boundary(max(self._now(), self._paused_until_s))

    def update_weights(self, until_s: float, *, recompute: bool) -> None:
        self._paused_until_s = until_s
        if not self.options.keep_prefixes:
            self.cache.reset()
        self._recompute_asked = recompute

    def _set_boundary(self, t_s: float) -> None:
        self._boundary_is_set = True
        self._schedule(t_s, self._boundary)

    def _boundary(self) -> None:
        self._boundary_is_set = False
        if not math.isnan(self._step_start_s):
            self.busy_s += self._now() - self._step_start_s
            self._step_start_s = math.nan
            self._end_step()
        if self._recompute_asked:
            self._recompute_asked = False
            self._recompute_in_flight()
        is_paused = self._now() < self._paused_until_s
        if is_paused or not self._has_work:
            self._at_rest = True
        if self._boundary_is_set or not self._has_work:
            return
        if is_paused:
            self._set_boundary(self._paused_until_s)
        else:
            self._start_step()

    def _start_step(self) -> None:
        self._admit()
        self._preempt()
        kv_tok = sum(request.context_tok for request in self.running)
        if self.prefilling:
            seconds = self.model.mixed_s(*self._take_chunks(), len(self.running), kv_tok)
        else:
            seconds = self.model.decode_s(len(self.running), kv_tok)
        self._step_start_s, self._at_rest = self._now(), False
        self._set_boundary(self._now() + seconds)

    def _admit(self) -> None:
        is_free = self._at_rest or not (self.running or self.prefilling)
        while self.waiting and len(self.running) + len(self.prefilling) < self.options.max_num_seqs:
            request = self.waiting[0]
            if not is_free and request.eligible_at > self._steps:
                return
            hit = self.cache.open(request.trajectory, request.prompt, request.context_tok)
            if hit is None:
                return
            self._num_admitted += 1
            request.admitted, request.done_tok = self._num_admitted, hit
            request.cached_tok += hit
            self.prefilling.append(self.waiting.popleft())

    def _preempt(self) -> None:
        """Until every running turn has room for one more token, the newest goes back to the queue's head."""
        while self.cache.room_tok < len(self.running):
            newest = max(self.running, key=lambda request: request.admitted)
            self.running.remove(newest)
            newest.num_preemptions += 1
            self._requeue(newest, reusable=True)

    def _take_chunks(self) -> tuple[int, int, int]:
        """Tokens, tile area and longest context of the step's chunks."""
        budget = max(self.options.block_tok, self.options.max_batched_tok - len(self.running))
        chunk_tok, area = 0, 0
        longest_tok = max((request.context_tok for request in self.running), default=0)
        for request in self.prefilling:
            take = min(request.context_tok - request.done_tok, budget - chunk_tok)
            if take <= 0:
                break
            if not request.started:
                request.started = True
                request.queue_s += self._now() - request.arrived_s
            area += tile_area(request.done_tok, take)
            request.done_tok += take
            longest_tok = max(longest_tok, request.done_tok)
            request.prefilled_tok += take
            chunk_tok += take
        return chunk_tok, area, longest_tok

    def _end_step(self) -> None:
        """Every running turn has one token more; whole prompts give their first."""
        self._steps += 1
        self.cache.take(len(self.running))
        for request in self.running:
            request.context_tok += 1
            request.remaining_tok -= 1
        finished = sorted((r for r in self.running if not r.remaining_tok), key=lambda request: request.admitted)
        while self.prefilling and self.prefilling[0].done_tok == self.prefilling[0].context_tok:
            request = self.prefilling.popleft()
            request.context_tok += 1
            request.remaining_tok -= 1
            (self.running if request.remaining_tok else finished).append(request)
        self.running = [request for request in self.running if request.remaining_tok]
        for request in finished:
            self.cache.close(request.trajectory, request.prompt, request.own_tok)
        for request in finished:
            self._on_done(self, request)

    def _requeue(self, request: Request, *, reusable: bool) -> None:
        self.cache.close(request.trajectory, request.prompt, request.own_tok, reusable=reusable)
        request.arrived_s, request.started, request.done_tok, request.eligible_at = self._now(), False, 0, 0
        self.waiting.appendleft(request)

    def _recompute_in_flight(self) -> None:
        self.cache.give_back(len(self.prefilling))
        victims = sorted([*self.running, *self.prefilling], key=lambda request: -request.admitted)
        self.running, self.prefilling = [], deque()
        for request in victims:
            self._requeue(request, reusable=False)
