"""`Clock`, `Instance` and `KvCache` as Python sees them, over the compiled core's arrays."""

from __future__ import annotations

from collections.abc import Callable

from libra.backends.sim.clock import Clock
from libra.backends.sim.compiled import loop
from libra.backends.sim.compiled.check import check
from libra.backends.sim.compiled.state import DUE, ENDED, EVENTS_FULL, NOTHING_LEFT, TOOL_RETURNED, TURN_OVER
from libra.backends.sim.compiled.store import Store
from libra.backends.sim.instance import check_fits
from libra.backends.sim.kv_cache import Prompt
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel


class CompiledCache:
    """A cache's entries by trajectory and prompt; see `KvCache` for what its methods promise."""

    def __init__(self, store: Store, slot: int) -> None:
        self._store, self._slot = store, slot

    @property
    def num_resets(self) -> int:
        return int(self._store.arrays.engines[self._slot]["num_resets"])

    def cached_tok(self, trajectory: int) -> int:
        key = self._store.keys.get(trajectory, -1)
        return 0 if key < 0 else int(self._store.arrays.prefixes[self._slot, key]["tok"])

    def adopt(self, trajectory: int, prompt: Prompt, own_tok: int) -> bool:
        key = self._store.key(trajectory, prompt)
        return bool(loop.adopt(*self._store.arrays, self._slot, key, own_tok))

    def forget(self, trajectory: int) -> None:
        key = self._store.keys.get(trajectory, -1)
        if key >= 0:
            loop.forget(*self._store.arrays, self._slot, key)

    def reset(self) -> None:
        loop.reset_cache(*self._store.arrays, self._slot)


class CompiledInstance:
    """One engine; see `Instance` for what its methods promise."""

    def __init__(self, instance_id: int, step_model: StepModel, clock: CompiledClock) -> None:
        self.id, self.tp, self.model = instance_id, step_model.tp, step_model
        self._store = clock.store
        self.slot = self._store.open_slot(step_model)
        clock.engines[self.slot] = self
        self.cache = CompiledCache(self._store, self.slot)
        self.num_arriving = 0
        self._busy_s, self._capacity_tok = 0.0, step_model.kv_capacity_tok
        self._is_closed = False
        self._keeps_prefixes = clock.options.keep_prefixes

    @property
    def busy_s(self) -> float:
        return self._busy_s if self._is_closed else float(self._store.arrays.engines[self.slot]["busy_s"])

    @property
    def is_idle(self) -> bool:
        if self._is_closed or self.num_arriving:
            return not self.num_arriving
        engine = self._store.arrays.engines[self.slot]
        return bool(engine["waiting_first"] < 0 and engine["prefill_first"] < 0 and not engine["num_running"])

    def submit_turn(self, trajectory: int, prompt: Prompt, context_tok: int, num_tok: int, latency_s: float) -> None:
        """Queue a turn and the tool after it; a negative latency ends the trajectory. See `Instance.submit`."""
        if context_tok + num_tok >= self._capacity_tok:
            check_fits(self.id, self.model, context_tok + num_tok + 1)
        store = self._store
        key = store.key(trajectory, prompt)
        while not loop.submit(*store.arrays, self.slot, key, context_tok, num_tok, latency_s):
            store.grow_events()

    def update_weights(self, until_s: float, *, recompute: bool) -> None:
        if not self._keeps_prefixes:
            self.cache.reset()
        while not loop.pause(*self._store.arrays, self.slot, until_s, recompute):
            self._store.grow_events()

    def mark_leaving(self, is_leaving: bool) -> None:
        self._store.arrays.engines[self.slot]["is_leaving"] = is_leaving

    def close(self) -> None:
        self._busy_s, self._is_closed = self.busy_s, True
        self._store.close_slot(self.slot)


class CompiledClock(Clock):
    """The clock that owns the compiled core. `on_tool` and `on_end` are told of trajectories whose tool returned or
    last turn ended (there with its engine), `on_turn` of each other turn that a leaving engine has finished."""

    def __init__(self, options: SimOptions) -> None:
        super().__init__()
        self.store, self.options = Store(options), options
        self.engines: dict[int, CompiledInstance] = {}
        self.on_tool: Callable[[int], None]
        self.on_end: Callable[[int, CompiledInstance], None]
        self.on_turn: Callable[[CompiledInstance], None]
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._num_callbacks = 0

    def at(self, t_s: float, callback: Callable[[], None]) -> None:
        self._num_callbacks += 1
        self._callbacks[self._num_callbacks] = callback
        while not loop.schedule(*self.store.arrays, t_s, self._num_callbacks):
            self.store.grow_events()

    def run(self, until: Callable[[], bool]) -> bool:
        store, run, names, checks, is_inside = self.store, loop.run, self.store.names, self.options.check, False
        try:
            while is_inside or not until():
                why, who, self.now_s = run(*store.arrays)
                is_inside = why not in (TOOL_RETURNED, DUE)
                if checks and not is_inside:
                    check(store.arrays)
                if why == TOOL_RETURNED:
                    self.on_tool(names[who])
                elif why == DUE:
                    self._callbacks.pop(who)()
                elif why == NOTHING_LEFT:
                    return False
                else:
                    self._act_inside(why, who)
            return True
        finally:
            self.num_events = int(store.arrays.head[0]["num_events"])

    def _act_inside(self, why: int, who: int) -> None:
        """What is to be done in the middle of an event."""
        store = self.store
        if why == EVENTS_FULL:
            store.grow_events()
            return
        slot = int(store.arrays.head[0]["engine"])
        if why == ENDED:
            self.on_end(store.names[who], self.engines[slot])
        elif why == TURN_OVER:
            self.on_turn(self.engines[slot])
        else:
            store.fill_step(slot, who)
