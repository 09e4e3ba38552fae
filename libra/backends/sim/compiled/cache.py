"""`KvCache` over arrays: `s.prefixes[slot, key]` is what a key has in an engine, linked from oldest to newest."""

from __future__ import annotations

import numpy as np

from libra.backends.sim.compiled.jit import compiled


@compiled
def room_tok(engine):
    return engine.capacity_tok - engine.used_tok + engine.evictable_tok


@compiled
def keep_prefix(s, slot, key, tok):
    """The key becomes the newest prefix."""
    engine, entry = s.engines[slot], s.prefixes[slot, key]
    entry.tok, entry.is_evictable, entry.older, entry.newer = tok, 1, engine.lru_last, -1
    if engine.lru_last >= 0:
        s.prefixes[slot, engine.lru_last].newer = key
    else:
        engine.lru_first = key
    engine.lru_last = key
    engine.evictable_tok += tok


@compiled
def pop(s, slot, key, keep):
    engine, entry = s.engines[slot], s.prefixes[slot, key]
    if not entry.is_evictable:
        return
    if entry.older >= 0:
        s.prefixes[slot, entry.older].newer = entry.newer
    else:
        engine.lru_first = entry.newer
    if entry.newer >= 0:
        s.prefixes[slot, entry.newer].older = entry.older
    else:
        engine.lru_last = entry.older
    engine.evictable_tok -= entry.tok
    if not keep:
        engine.used_tok -= entry.tok
    entry.tok, entry.is_evictable = 0, 0


@compiled
def take(s, slot, num_tok):
    engine, block_tok = s.engines[slot], s.head[0].block_tok
    while engine.lru_first >= 0:
        excess = engine.used_tok + num_tok - engine.capacity_tok
        if excess <= 0:
            break
        entry = s.prefixes[slot, engine.lru_first]
        blocks_tok = (excess + block_tok - 1) // block_tok * block_tok
        if blocks_tok >= entry.tok:
            pop(s, slot, engine.lru_first, False)
        else:
            entry.tok -= blocks_tok
            engine.evictable_tok -= blocks_tok
            engine.used_tok -= blocks_tok
    engine.used_tok += num_tok


@compiled
def open_(s, slot, key):
    """Cached tokens of a turn that enters, or -1 without room."""
    engine, turn = s.engines[slot], s.turns[key]
    prompt, own_prefix = s.prefixes[slot, turn.prompt], s.prefixes[slot, key]
    held = prompt.num_holders > 0
    shared = turn.prompt_tok if held else np.int64(prompt.tok)
    is_whole = shared == turn.prompt_tok
    own = np.int64(own_prefix.tok) if is_whole else 0
    need = turn.context_tok + 1 - own - shared
    reused = own if held else own + shared
    if need > room_tok(engine) - reused:
        return -1
    pop(s, slot, key, is_whole)
    pop(s, slot, turn.prompt, True)
    prompt.num_holders += 1
    take(s, slot, need)
    hit = (shared + own) // s.head[0].block_tok * s.head[0].block_tok
    return max(0, min(hit, turn.context_tok - 1))


@compiled
def close(s, slot, key, reusable):
    engine, turn = s.engines[slot], s.turns[key]
    own_tok, prompt = turn.context_tok - turn.prompt_tok, s.prefixes[slot, turn.prompt]
    if reusable and own_tok > 0:
        keep_prefix(s, slot, key, own_tok)
    else:
        engine.used_tok -= own_tok
    prompt.num_holders -= 1
    if prompt.num_holders == 0:
        if reusable:
            keep_prefix(s, slot, turn.prompt, turn.prompt_tok)
        else:
            engine.used_tok -= turn.prompt_tok
