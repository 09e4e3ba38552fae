"""An engine's turns: the queue that waits, the queue that prefills, and the heap of those that run."""

from __future__ import annotations

from libra.backends.sim.compiled.cache import close, open_, room_tok
from libra.backends.sim.compiled.jit import compiled


@compiled
def is_sooner(one, other):
    return one.finish_at < other.finish_at or (one.finish_at == other.finish_at and one.admitted < other.admitted)


@compiled
def push_running(s, slot, finish_at, key):
    engine, heap = s.engines[slot], s.running[slot]
    admitted, at = s.turns[key].admitted, engine.num_running
    engine.num_running += 1
    while at > 0:
        above = heap[(at - 1) // 2]
        if above.finish_at < finish_at or (above.finish_at == finish_at and above.admitted < admitted):
            break
        heap[at] = above
        at = (at - 1) // 2
    entry = heap[at]
    entry.finish_at, entry.admitted, entry.key = finish_at, admitted, key


@compiled
def drop_running(s, slot, at):
    """Take the entry at a position out of the heap; returns its key."""
    engine, heap = s.engines[slot], s.running[slot]
    key = heap[at].key
    engine.num_running -= 1
    num = engine.num_running
    last = heap[num]
    while at > 0 and at < num and is_sooner(last, heap[(at - 1) // 2]):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    while 2 * at + 1 < num:
        child = 2 * at + 1
        if child + 1 < num and is_sooner(heap[child + 1], heap[child]):
            child += 1
        if not is_sooner(heap[child], last):
            break
        heap[at] = heap[child]
        at = child
    if at < num:
        heap[at] = last
    return key


@compiled
def settle(s, slot, key):
    engine, turn = s.engines[slot], s.turns[key]
    left = max(0, turn.finish_at - engine.steps)
    turn.context_tok += turn.remaining_tok - left
    turn.remaining_tok = left


@compiled
def admit(s, slot):
    head, engine = s.head[0], s.engines[slot]
    is_free = engine.at_rest or not (engine.num_running or engine.num_prefilling)
    while engine.waiting_first >= 0 and engine.num_running + engine.num_prefilling < head.max_num_seqs:
        key = engine.waiting_first
        turn = s.turns[key]
        if not is_free and turn.eligible_at > engine.steps:
            return
        hit = open_(s, slot, key)
        if hit < 0:
            return
        engine.waiting_first = turn.next
        engine.num_admitted += 1
        turn.admitted, turn.done_tok, turn.next = engine.num_admitted, hit, -1
        turn.cached_tok += hit
        if engine.prefill_first < 0:
            engine.prefill_first = key
        else:
            s.turns[engine.prefill_last].next = key
        engine.prefill_last = key
        engine.num_prefilling += 1


@compiled
def requeue(s, slot, key, reusable):
    engine, turn = s.engines[slot], s.turns[key]
    close(s, slot, key, reusable)
    turn.arrived_s, turn.started, turn.done_tok, turn.eligible_at = s.head[0].now_s, 0, 0, 0
    if engine.waiting_first < 0:
        engine.waiting_last = key
    turn.next = engine.waiting_first
    engine.waiting_first = key


@compiled
def make_room(s, slot):
    engine, heap = s.engines[slot], s.running[slot]
    while room_tok(engine) < engine.num_running:
        newest = 0
        for at in range(1, engine.num_running):
            if heap[at].admitted > heap[newest].admitted:
                newest = at
        key = drop_running(s, slot, newest)
        settle(s, slot, key)
        engine.kv_read_tok -= s.turns[key].context_tok
        s.turns[key].num_preemptions += 1
        requeue(s, slot, key, True)


@compiled
def recompute_in_flight(s, slot):
    """The heap is turned upside down to queue the newest turn first."""
    engine, heap = s.engines[slot], s.running[slot]
    engine.used_tok -= engine.num_prefilling
    num = engine.num_running
    engine.num_running = 0
    for at in range(num):
        key = heap[at].key
        settle(s, slot, key)
        push_running(s, slot, -s.turns[key].admitted, key)
    while engine.prefill_first >= 0:
        key = engine.prefill_first
        engine.prefill_first = s.turns[key].next
        push_running(s, slot, -s.turns[key].admitted, key)
    engine.num_prefilling = engine.kv_read_tok = 0
    while engine.num_running:
        requeue(s, slot, drop_running(s, slot, 0), False)
