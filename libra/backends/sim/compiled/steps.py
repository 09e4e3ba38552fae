"""An engine's time: closed forms of its steps, segments and their boundaries."""

from __future__ import annotations

import math

from libra.backends.sim import truth_ops
from libra.backends.sim.compiled.cache import close, room_tok, take
from libra.backends.sim.compiled.events import push
from libra.backends.sim.compiled.jit import compiled
from libra.backends.sim.compiled.state import BOUNDARY, NUM_FIGURES
from libra.backends.sim.compiled.turns import admit, drop_running, make_room, push_running, recompute_in_flight, settle

chunk_attention_s = compiled(truth_ops.chunk_attention_s)
tile_area = compiled(truth_ops.tile_area)


@compiled
def alpha_s(s, engine):
    return s.times[engine.model, NUM_FIGURES + engine.num_running]


@compiled
def decode_s(s, engine, steps):
    num, beta = engine.num_running, s.times[engine.model, 0]
    first = alpha_s(s, engine) + beta * engine.kv_read_tok
    return steps * first + beta * num * steps * (steps - 1) / 2


@compiled
def steps_until(s, engine, elapsed_s):
    num, beta = engine.num_running, s.times[engine.model, 0]
    half = beta * num / 2
    linear = alpha_s(s, engine) + beta * engine.kv_read_tok - half
    root = 2 * elapsed_s / (linear + math.sqrt(linear * linear + 4 * half * elapsed_s))
    steps = max(1, math.floor(root))
    while decode_s(s, engine, steps) < elapsed_s:
        steps += 1
    return steps


@compiled
def mixed_s(s, engine):
    """Seconds of a step with prefill chunks; NaN where Python has not filled in the time of that many tokens."""
    times, num, num_tables = s.times[engine.model], engine.num_running, s.head[0].num_tables
    heads, bodies = NUM_FIGURES + num_tables, NUM_FIGURES + 2 * num_tables
    seconds = times[bodies + engine.chunk_tok + num] + times[heads + num + 1]
    work_s = engine.area * times[3] + engine.kv_read_tok * times[1]
    attention_s = chunk_attention_s(work_s, engine.longest_tok * times[4], engine.chunk_tok * times[5])
    seconds += times[2] + attention_s + num * times[6]
    return seconds


@compiled
def set_boundary(s, slot, t_s):
    engine = s.engines[slot]
    engine.epoch += 1
    engine.boundary_s = t_s
    push(s, t_s, BOUNDARY, slot, engine.epoch)


@compiled
def next_step(s, engine):
    if engine.segment_steps > 1:
        return engine.steps + steps_until(s, engine, s.head[0].now_s - engine.segment_start_s)
    return engine.steps + engine.segment_steps


@compiled
def cut_segment(s, slot, at_step):
    engine = s.engines[slot]
    steps = at_step - engine.steps
    if engine.segment_steps > max(1, steps):
        engine.segment_steps = steps
        set_boundary(s, slot, engine.segment_start_s + decode_s(s, engine, steps))


@compiled
def has_work(engine):
    return engine.waiting_first >= 0 or engine.prefill_first >= 0 or engine.num_running > 0


@compiled
def begin(s, slot, steps, duration_s):
    engine, now_s = s.engines[slot], s.head[0].now_s
    engine.segment_start_s, engine.segment_steps, engine.at_rest, engine.chunk_tok = now_s, steps, 0, 0
    set_boundary(s, slot, now_s + duration_s)


@compiled
def longest_running(s, slot):
    engine, longest_tok = s.engines[slot], 0
    for index in range(engine.num_running):
        turn = s.turns[s.running[slot, index].key]
        longest_tok = max(longest_tok, turn.context_tok + turn.remaining_tok - (turn.finish_at - engine.steps))
    return longest_tok


@compiled
def take_chunks(s, slot):
    head, engine = s.head[0], s.engines[slot]
    budget = max(head.block_tok, head.max_batched_tok - engine.num_running)
    chunk_tok, area, longest_tok, key = 0, 0, longest_running(s, slot), engine.prefill_first
    while key >= 0:
        turn = s.turns[key]
        take = min(turn.context_tok - turn.done_tok, budget - chunk_tok)
        if take <= 0:
            break
        if not turn.started:
            turn.started = 1
            turn.queue_s += head.now_s - turn.arrived_s
        area += tile_area(turn.done_tok, take)
        turn.done_tok += take
        longest_tok = max(longest_tok, turn.done_tok)
        turn.prefilled_tok += take
        chunk_tok += take
        key = turn.next
    engine.chunk_tok, engine.area, engine.longest_tok = chunk_tok, area, longest_tok


@compiled
def next_segment(s, slot):
    head, engine = s.head[0], s.engines[slot]
    if engine.recompute_asked:
        engine.recompute_asked = 0
        recompute_in_flight(s, slot)
    if not has_work(engine) or head.now_s < engine.paused_until_s:
        engine.at_rest = 1
    if engine.boundary_s < math.inf or not has_work(engine):
        return
    if head.now_s < engine.paused_until_s:
        set_boundary(s, slot, engine.paused_until_s)
        return
    admit(s, slot)
    make_room(s, slot)
    if engine.prefill_first >= 0:
        take_chunks(s, slot)
        return
    num = engine.num_running
    steps = min(s.running[slot, 0].finish_at - engine.steps, max(1, room_tok(engine) // num))
    if engine.waiting_first >= 0 and s.turns[engine.waiting_first].eligible_at > engine.steps:
        steps = min(steps, s.turns[engine.waiting_first].eligible_at - engine.steps)
    begin(s, slot, steps, decode_s(s, engine, steps))


@compiled
def finish(s, slot, key):
    """Line a turn up to be closed and reported."""
    head = s.head[0]
    s.turns[key].next = -1
    if head.done_first < 0:
        head.done_first = key
    else:
        s.turns[head.done_last].next = key
    head.done_last = key


@compiled
def end_segment(s, slot):
    head, engine = s.head[0], s.engines[slot]
    engine.busy_s += head.now_s - engine.segment_start_s
    num, steps = engine.num_running, engine.segment_steps
    engine.segment_steps = 0
    engine.steps += steps
    engine.kv_read_tok += num * steps
    take(s, slot, num * steps)
    while engine.num_running and s.running[slot, 0].finish_at <= engine.steps:
        key = drop_running(s, slot, 0)
        settle(s, slot, key)
        engine.kv_read_tok -= s.turns[key].context_tok
        finish(s, slot, key)
    while engine.prefill_first >= 0:
        key = engine.prefill_first
        turn = s.turns[key]
        if turn.done_tok != turn.context_tok:
            break
        engine.prefill_first = turn.next
        engine.num_prefilling -= 1
        turn.context_tok += 1
        turn.remaining_tok -= 1
        if turn.remaining_tok:
            turn.finish_at = engine.steps + turn.remaining_tok
            push_running(s, slot, turn.finish_at, key)
            engine.kv_read_tok += turn.context_tok
        else:
            finish(s, slot, key)
    key = head.done_first
    while key >= 0:
        close(s, slot, key, True)
        key = s.turns[key].next
