"""The clock's heap: earliest first, at equal times in the order of insertion."""

from __future__ import annotations

from libra.backends.sim.compiled.jit import compiled


@compiled
def push(s, t_s, kind, who, epoch):
    head, events = s.head[0], s.events
    head.count += 1
    t_s = max(t_s, head.now_s)
    at = head.num_due
    head.num_due += 1
    while at > 0 and t_s < events[(at - 1) // 2].t_s:
        events[at] = events[(at - 1) // 2]
        at = (at - 1) // 2
    event = events[at]
    event.t_s, event.count, event.kind, event.who, event.epoch = t_s, head.count, kind, who, epoch


@compiled
def is_before(one, other):
    return one.t_s < other.t_s or (one.t_s == other.t_s and one.count < other.count)


@compiled
def drop_first(s):
    head, events = s.head[0], s.events
    head.num_due -= 1
    num, at = head.num_due, 0
    last = events[num]
    while 2 * at + 1 < num:
        child = 2 * at + 1
        if child + 1 < num and is_before(events[child + 1], events[child]):
            child += 1
        if not is_before(events[child], last):
            break
        events[at] = events[child]
        at = child
    events[at] = last
