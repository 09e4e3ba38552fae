"""The compiled core under `sim.check=true`: the books of every engine's cache balance between two events."""

from __future__ import annotations

from typing import Any

from libra.backends.sim.checked_cache import ensure
from libra.backends.sim.compiled.state import State


def check(arrays: State) -> None:
    """Raises `InvariantError` with the law and the slot of the engine."""
    for slot in range(len(arrays.engines)):
        _check_engine(arrays, slot)


def _check_engine(arrays: State, slot: int) -> None:
    engine, entries, turns, where = arrays.engines[slot], arrays.prefixes[slot], arrays.turns, f"slot {slot}"
    heap = arrays.running[slot][: engine["num_running"]]
    running, prefilling = turns[heap["key"]], turns[_queue(turns, engine["prefill_first"])]
    ensure(len(prefilling) == engine["num_prefilling"], "turns that prefill", where)
    left = heap["finish_at"] - engine["steps"]
    ensure(bool((left > 0).all()), "a turn ends in the future", where)
    grown = (running["remaining_tok"] - left).sum()
    ensure(engine["kv_read_tok"] == running["context_tok"].sum() + grown, "KV read", where)
    flying = [*running, *prefilling]
    prompts = {int(turn["prompt"]): int(turn["prompt_tok"]) for turn in flying}
    ensure(entries["num_holders"].sum() == len(flying), "turns that hold a prompt", where)
    ensure(engine["evictable_tok"] == entries["tok"].sum(), "tokens that may be evicted", where)
    own_tok = sum(int(turn["context_tok"] - turn["prompt_tok"]) for turn in flying) + grown + len(prefilling)
    resident = sum(prompts.values()) + own_tok + engine["evictable_tok"]
    ensure(engine["used_tok"] == resident, f"{engine['used_tok']} KV tokens where {resident} are held", where)
    ensure(0 <= engine["used_tok"] <= engine["capacity_tok"], "KV capacity", where)


def _queue(turns: Any, key: int) -> list[int]:
    keys = []
    while key >= 0:
        keys.append(int(key))
        key = turns[key]["next"]
    return keys
