"""The closed-form engine against a loop that simulates every token step, and against hand arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.backends.sim.clock import Clock
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.stepwise import StepwiseInstance
from libra.backends.sim.truth_ops import tile_area
from libra.core.errors import CapacityError


class LinearSteps:
    """A step model with round numbers: alpha(B) = 10 ms + 1 ms B, 1 us per KV token, 0.1 ms per prefill token."""

    tp = 1
    beta = 1e-6

    def __init__(self, kv_capacity_tok: int = 10**9) -> None:
        self.kv_capacity_tok = kv_capacity_tok

    def alpha(self, num_seqs: int) -> float:
        return 0.010 + 0.001 * num_seqs

    def decode_s(self, num_seqs: int, kv_tok: int) -> float:
        return self.alpha(num_seqs) + self.beta * kv_tok

    def mixed_s(self, prefill_tok: int, area: int, longest_tok: int, num_seqs: int, kv_tok: int) -> float:
        prefill_s = 1e-4 * prefill_tok + 1e-10 * area + 1e-7 * longest_tok
        return self.alpha(num_seqs) + 3 * self.beta * kv_tok + prefill_s


Turn = tuple[float, int, int]
"""Arrival, context tokens, tokens to generate."""


def fast(turns: list[Turn], options: SimOptions, capacity_tok: int = 10**9) -> tuple[dict[int, float], Instance]:
    clock, ends = Clock(), {}

    def done(instance: Instance, request: Request) -> None:
        ends[request.trajectory] = clock.now_s

    engine = Instance(0, LinearSteps(capacity_tok), options, clock.now, clock.at, done)  # type: ignore[arg-type]
    for number, (arrival, context, generate) in enumerate(turns):
        clock.at(arrival, lambda n=number, c=context, g=generate: engine.submit(Request(n, (f"p{n}", c), c, g)))
    clock.run(lambda: len(ends) == len(turns))
    return ends, engine


def slow(turns: list[Turn], options: SimOptions) -> dict[int, float]:
    """One engine step at a time, no shortcut: decode tokens first, then FIFO prefill chunks in the token budget."""
    model, now, ends = LinearSteps(), 0.0, {}
    scheduled_s = 0.0  # when the step that comes next was scheduled: with a lag, at the start of the one before
    todo = sorted((arrival, number) for number, (arrival, _, _) in enumerate(turns))
    waiting, prefilling, running = [], [], []
    while len(ends) < len(turns):
        while todo and todo[0][0] <= now:
            number = todo.pop(0)[1]
            waiting.append([number, turns[number][1], 0, turns[number][2]])
        is_free = not (prefilling or running) or not options.async_lag_steps
        while waiting and len(prefilling) + len(running) < options.max_num_seqs:
            if not is_free and turns[waiting[0][0]][0] > scheduled_s:
                break
            prefilling.append(waiting.pop(0))
        if not prefilling and not running:
            now = todo[0][0]
            continue
        scheduled_s = now
        kv_tok = sum(context for _, context, _, _ in running)
        if prefilling:
            budget, chunk_tok, area = options.max_batched_tok - len(running), 0, 0
            longest_tok = max((context for _, context, _, _ in running), default=0)
            for entry in prefilling:
                take = min(entry[1] - entry[2], budget - chunk_tok)
                if take:
                    area += tile_area(entry[2], take)
                    longest_tok = max(longest_tok, entry[2] + take)
                entry[2] += take
                chunk_tok += take
            now += model.mixed_s(chunk_tok, area, longest_tok, len(running), kv_tok)
        else:
            now += model.alpha(len(running)) + model.beta * kv_tok
        for entry in running:
            entry[1] += 1
            entry[3] -= 1
        while prefilling and prefilling[0][2] == prefilling[0][1]:
            entry = prefilling.pop(0)
            entry[1] += 1
            entry[3] -= 1
            running.append(entry)
        for entry in [entry for entry in running if entry[3] == 0]:
            ends[entry[0]] = now
            running.remove(entry)
    return ends


def test_one_turn_takes_its_prefill_step_and_its_decode_steps() -> None:
    ends, _ = fast([(0.0, 100, 3)], SimOptions())
    prefill_s = 0.010 + 1e-4 * 100 + 1e-10 * 4 * 128 * 128 + 1e-7 * 100
    decode_s = 2 * 0.011 + 1e-6 * (101 + 102)
    assert ends[0] == pytest.approx(prefill_s + decode_s, rel=1e-12)


@pytest.mark.parametrize("engine", [Instance, StepwiseInstance])
def test_a_turn_that_reaches_a_busy_engine_misses_the_step_that_is_scheduled(engine: type) -> None:
    """Turn 0 decodes 11 ms a step; turn 1 arrives in the middle of a step and waits for its end, or one step more."""

    def queue_s(lag_steps: int, first_tok: int) -> float:
        clock, done = Clock(), []
        options = SimOptions(async_lag_steps=lag_steps)
        one = engine(0, LinearSteps(), options, clock.now, clock.at, lambda _, request: done.append(request))
        one.submit(Request(0, ("a", 1), 1, first_tok))
        late = Request(1, ("b", 10), 10, 2)
        clock.at(0.0956, lambda: one.submit(late))
        clock.run(lambda: late in done)
        return late.queue_s

    assert 0.0 < queue_s(0, 90) < 0.011
    assert queue_s(1, 90) - queue_s(0, 90) == pytest.approx(0.011, rel=1e-2)
    assert queue_s(1, 3) == 0.0, "an idle engine starts at once"


turn = st.tuples(st.floats(0.0, 3.0, width=32), st.integers(1, 900), st.integers(1, 120))


@settings(max_examples=150, deadline=None)
@given(st.lists(turn, min_size=1, max_size=12), st.integers(1, 6), st.integers(64, 600), st.integers(0, 1))
def test_closed_form_equals_token_by_token(
    turns: list[Turn], max_num_seqs: int, max_batched_tok: int, lag_steps: int
) -> None:
    options = SimOptions(
        max_num_seqs=max_num_seqs, max_batched_tok=max_batched_tok, async_lag_steps=lag_steps, check=True
    )
    ends, _ = fast(turns, options)
    expected = slow(turns, options)
    assert ends == pytest.approx(expected, rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(st.lists(turn, min_size=2, max_size=12), st.integers(1030, 4000))
def test_kv_limit_preempts_and_everything_still_ends(turns: list[Turn], capacity_tok: int) -> None:
    ends, engine = fast(turns, SimOptions(check=True), capacity_tok)
    assert set(ends) == set(range(len(turns)))
    assert engine.is_idle
    engine.cache.check(active_own_tok=0)
    assert engine.cache.used_tok <= capacity_tok


def test_second_sample_of_a_group_finds_the_prompt_in_whole_blocks() -> None:
    clock, done = Clock(), []
    engine = Instance(0, LinearSteps(), SimOptions(), clock.now, clock.at, lambda _, request: done.append(request))  # type: ignore[arg-type]
    engine.submit(Request(0, ("p", 100), 100, 5))
    clock.run(lambda: len(done) == 1)
    engine.submit(Request(1, ("p", 100), 100, 5))
    clock.run(lambda: len(done) == 2)
    assert [request.cached_tok for request in done] == [0, 96]
    assert [request.prefilled_tok for request in done] == [100, 4]


def test_next_turn_prefills_only_what_is_new() -> None:
    clock, done = Clock(), []
    engine = Instance(0, LinearSteps(), SimOptions(), clock.now, clock.at, lambda _, request: done.append(request))  # type: ignore[arg-type]
    engine.submit(Request(0, ("p", 100), 100, 28))
    clock.run(lambda: len(done) == 1)
    engine.submit(Request(0, ("p", 100), 128 + 50, 5))
    clock.run(lambda: len(done) == 2)
    assert (done[1].cached_tok, done[1].prefilled_tok) == (128, 50)


def test_weight_update_stops_the_engine_and_drops_prefixes() -> None:
    clock, done = Clock(), []
    engine = Instance(0, LinearSteps(), SimOptions(check=True), clock.now, clock.at, lambda _, r: done.append(r))  # type: ignore[arg-type]
    engine.submit(Request(0, ("p", 100), 100, 50))
    clock.at(0.2, lambda: engine.update_weights(5.0, recompute=True))
    clock.run(lambda: len(done) == 1)
    request = done[0]
    assert clock.now_s > 5.0
    assert request.cached_tok == 0
    assert request.prefilled_tok > 200 > request.prompt[1]
    assert request.context_tok == 150


@pytest.mark.parametrize(("keep", "cached_tok"), [(False, 0), (True, 128)])
def test_prefixes_outlive_a_weight_update_only_where_they_are_kept(keep: bool, cached_tok: int) -> None:
    clock, done = Clock(), []
    options = SimOptions(keep_prefixes=keep, check=True)
    engine = Instance(0, LinearSteps(), options, clock.now, clock.at, lambda _, r: done.append(r))  # type: ignore[arg-type]
    engine.submit(Request(0, ("p", 100), 100, 28))
    clock.run(lambda: len(done) == 1)
    engine.update_weights(clock.now_s + 1.0, recompute=True)
    engine.submit(Request(0, ("p", 100), 150, 5))
    clock.run(lambda: len(done) == 2)
    assert done[1].cached_tok == cached_tok


def test_context_that_can_never_fit_is_refused_with_a_reason() -> None:
    clock = Clock()
    engine = Instance(3, LinearSteps(1000), SimOptions(), clock.now, clock.at, lambda _, request: None)  # type: ignore[arg-type]
    with pytest.raises(CapacityError, match="exceeds the KV cache of a TP-1 instance"):
        engine.submit(Request(0, ("p", 900), 900, 200))
