"""What Python calls: the event loop, and what may be done between two events."""

from __future__ import annotations

import math

import numpy as np

from libra.backends.sim.compiled.cache import keep_prefix, pop, room_tok, take
from libra.backends.sim.compiled.events import drop_first, push
from libra.backends.sim.compiled.jit import compiled
from libra.backends.sim.compiled.state import (
    BOUNDARY,
    CALLBACK,
    DUE,
    ENDED,
    EVENTS_FULL,
    NOTHING_LEFT,
    STEP_UNKNOWN,
    TOOL,
    TOOL_RETURNED,
    TURN_OVER,
    State,
)
from libra.backends.sim.compiled.steps import (
    begin,
    cut_segment,
    end_segment,
    mixed_s,
    next_segment,
    next_step,
    set_boundary,
)


@compiled
def schedule(head, events, engines, turns, prefixes, running, times, t_s, who):
    """False (and nothing done) while the heap is full; so does `submit`."""
    if head[0].num_due == len(events):
        return False
    push(State(head, events, engines, turns, prefixes, running, times), t_s, CALLBACK, who, 0)
    return True


@compiled
def submit(head, events, engines, turns, prefixes, running, times, slot, key, context_tok, num_tok, latency_s):
    if head[0].num_due == len(events):
        return False
    s, engine, turn = State(head, events, engines, turns, prefixes, running, times), engines[slot], turns[key]
    turn.context_tok, turn.remaining_tok, turn.latency_s = context_tok, num_tok, latency_s
    turn.arrived_s, turn.queue_s = head[0].now_s, 0.0
    turn.done_tok = turn.finish_at = turn.admitted = turn.eligible_at = turn.started = 0
    turn.cached_tok = turn.prefilled_tok = turn.num_preemptions = 0
    turn.next = -1
    if engine.waiting_first < 0:
        engine.waiting_first = key
    else:
        turns[engine.waiting_last].next = key
    engine.waiting_last = key
    if not engine.at_rest:
        turn.eligible_at = next_step(s, engine) + head[0].lag_steps
    if engine.boundary_s == math.inf:
        set_boundary(s, slot, max(head[0].now_s, engine.paused_until_s))
    else:
        cut_segment(s, slot, turn.eligible_at)
    return True


@compiled
def pause(head, events, engines, turns, prefixes, running, times, slot, until_s, recompute):
    """`Instance.update_weights` after the cache's reset."""
    if head[0].num_due == len(events):
        return False
    s, engine = State(head, events, engines, turns, prefixes, running, times), engines[slot]
    engine.paused_until_s, engine.recompute_asked = until_s, recompute
    if engine.boundary_s < math.inf:
        cut_segment(s, slot, next_step(s, engine))
    return True


@compiled
def report(s, slot):
    """The next finished turn: its counts join the trajectory's, its tool runs. Returns what Python has to know."""
    head, key = s.head[0], s.head[0].done_first
    turn = s.turns[key]
    head.done_first = turn.next
    turn.total_queue_s += turn.queue_s
    turn.total_cached_tok += turn.cached_tok
    turn.total_prefilled_tok += turn.prefilled_tok
    turn.total_preemptions += turn.num_preemptions
    head.num_preemptions += turn.num_preemptions
    if turn.latency_s < 0:
        return ENDED, key
    push(s, head.now_s + turn.latency_s, TOOL, key, 0)
    return (TURN_OVER, slot) if s.engines[slot].is_leaving else (NOTHING_LEFT, slot)


@compiled
def run(head, events, engines, turns, prefixes, running, times):
    """Carry out events until Python has to act. Returns why, who, and the time."""
    s, h = State(head, events, engines, turns, prefixes, running, times), head[0]
    while True:
        if h.engine >= 0:
            engine = engines[h.engine]
            while h.done_first >= 0:
                why, who = report(s, h.engine)
                if why != NOTHING_LEFT:
                    return why, who, h.now_s
            if engine.chunk_tok == 0:
                next_segment(s, h.engine)
            if engine.chunk_tok:
                seconds = mixed_s(s, engine)
                if math.isnan(seconds):
                    return STEP_UNKNOWN, engine.chunk_tok + engine.num_running, h.now_s
                begin(s, h.engine, 1, seconds)
            h.engine = -1
        if h.num_due == 0:
            return NOTHING_LEFT, 0, h.now_s
        if h.num_due + h.max_num_seqs + 2 > len(events):
            return EVENTS_FULL, 0, h.now_s
        first = events[0]
        h.now_s, kind, who, epoch = first.t_s, first.kind, first.who, first.epoch
        h.num_events += 1
        drop_first(s)
        if kind != BOUNDARY:
            return (TOOL_RETURNED if kind == TOOL else DUE), who, h.now_s
        if epoch == engines[who].epoch:
            h.engine = who
            engines[who].boundary_s = math.inf
            if engines[who].segment_steps:
                end_segment(s, who)


@compiled
def adopt(head, events, engines, turns, prefixes, running, times, slot, key, own_tok):
    s = State(head, events, engines, turns, prefixes, running, times)
    engine, turn = engines[slot], turns[key]
    prompt = prefixes[slot, turn.prompt]
    held, shared = prompt.num_holders > 0, np.int64(prompt.tok)
    need = own_tok + (0 if held else turn.prompt_tok - shared)
    if need > room_tok(engine) - shared or prefixes[slot, key].is_evictable:
        return False
    pop(s, slot, turn.prompt, True)
    take(s, slot, need)
    keep_prefix(s, slot, key, own_tok)
    if not held:
        keep_prefix(s, slot, turn.prompt, turn.prompt_tok)
    return True


@compiled
def forget(head, events, engines, turns, prefixes, running, times, slot, key):
    pop(State(head, events, engines, turns, prefixes, running, times), slot, key, False)


@compiled
def reset_cache(head, events, engines, turns, prefixes, running, times, slot):
    s = State(head, events, engines, turns, prefixes, running, times)
    engine = engines[slot]
    engine.num_resets += 1
    while engine.lru_first >= 0:
        pop(s, slot, engine.lru_first, False)
