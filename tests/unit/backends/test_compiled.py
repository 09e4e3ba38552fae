"""The compiled core's keys, slots and heap, and what happens without numba. Its bits are held by a property test."""

from __future__ import annotations

import sys

import pytest

from libra.backends.sim.clock import Clock
from libra.backends.sim.cores import make_clock
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import Truth
from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.models import load_model

COMPILED = SimOptions(engine="compiled", max_num_seqs=8)


def test_without_numba_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("libra.backends.sim.compiled")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ConfigError, match=r"sim\.engine: the compiled core needs numba") as raised:
        make_clock(COMPILED)
    assert "pip install 'libra-bench[fast]'" in str(raised.value)


def test_callbacks_come_by_time_and_then_in_the_order_of_asking() -> None:
    pytest.importorskip("numba", reason="the compiled core needs numba")
    orders = []
    for options in (COMPILED, SimOptions()):
        clock, order = make_clock(options), list[tuple[float, int]]()
        for number in range(500):
            clock.at(float(number * 7919 % 50), lambda n=number, c=clock, o=order: o.append((c.now_s, n)))
        clock.at(10.0, lambda c=clock, o=order: c.at(3.0, lambda: o.append((c.now_s, -1))))
        assert not clock.run(lambda: False)
        assert clock.num_events == 502
        orders.append(order)
    assert orders[0] == orders[1]
    assert (10.0, -1) in orders[0]
    assert type(make_clock(SimOptions())) is Clock


def test_keys_and_slots_return_once_nothing_mentions_them() -> None:
    pytest.importorskip("numba", reason="the compiled core needs numba")
    from libra.backends.sim.compiled.store import Store

    store, model = Store(COMPILED), Truth(load_cluster("a800x48"), load_model("qwen3-14b")).step_model(2)
    kept_key = store.key(0, ("kept", 10))
    slot = store.open_slot(model)
    store.arrays.prefixes[slot, kept_key]["is_evictable"] = 1
    store.retire(0, ("kept", 10))
    for number in range(1, 5000):
        store.key(number, (f"p{number // 4}", 10))
        store.retire(number, (f"p{number // 4}", 10))
    assert len(store.names) == 64
    assert store.keys[0] == kept_key, "a cache still holds it"
    for _ in range(100):
        store.close_slot(store.open_slot(model))
    assert len(store.arrays.engines) == 8
    assert {store.open_slot(model) for _ in range(20)}.isdisjoint({slot})
    assert len(store.arrays.engines) == len(store.arrays.prefixes) == len(store.arrays.running) == 32
