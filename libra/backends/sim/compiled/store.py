"""The arrays of the compiled core: who has which row, and how they grow."""

from __future__ import annotations

from typing import Any

import numpy as np

from libra.backends.sim.compiled.state import ENGINE, EVENT, HEAD, NUM_FIGURES, PREFIX, RUNNING, TURN, State
from libra.backends.sim.kv_cache import Key, Prompt
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel

LINKS = ("waiting_first", "waiting_last", "prefill_first", "prefill_last", "lru_first", "lru_last")
"""An engine's ends of lists: keys, -1 while a list is empty."""


class Store:
    """`arrays` are the compiled functions' arguments. Memory is bounded by what lives, not by what has lived: slots of
    engines and keys of trajectories and prompts return once no array mentions them."""

    def __init__(self, options: SimOptions) -> None:
        self.num_tables = options.max_num_seqs + 2
        largest_tok = max(options.max_batched_tok, options.block_tok + options.max_num_seqs)
        self._bodies = NUM_FIGURES + 2 * self.num_tables
        self.arrays = State(
            np.zeros(1, HEAD),
            np.zeros(4 * options.max_num_seqs + 64, EVENT),
            _blank_engines(8),
            np.zeros(64, TURN),
            np.zeros((8, 64), PREFIX),
            np.zeros((8, options.max_num_seqs), RUNNING),
            np.full((1, self._bodies + largest_tok + 1), np.nan),
        )
        head = self.arrays.head[0]
        head["engine"] = head["done_first"] = head["done_last"] = -1
        head["max_num_seqs"], head["max_batched_tok"] = options.max_num_seqs, options.max_batched_tok
        head["block_tok"], head["lag_steps"] = options.block_tok, options.async_lag_steps
        head["num_tables"] = self.num_tables
        self._models: list[StepModel] = []
        self._free_slots = list(range(8))[::-1]
        self.keys: dict[Key, int] = {}
        self.names: list[Any] = [None] * 64
        """Trajectory or prompt of each key; None for a free one."""
        self._free_keys = list(range(64))[::-1]
        self._retired: dict[Key, int] = {}
        """Keys that no live trajectory has; an engine's cache may still hold them."""
        self._num_users: dict[Prompt, int] = {}

    def grow_events(self) -> None:
        self._extend("events")

    # -- engines -------------------------------------------------------------------------------------------------------

    def open_slot(self, model: StepModel) -> int:
        """A slot for a new engine."""
        if not self._free_slots:
            num = len(self.arrays.engines)
            for name in ("engines", "prefixes", "running"):
                self._extend(name)
            self.arrays.engines[num:] = _blank_engines(num)
            self._free_slots = list(range(num, 2 * num))[::-1]
        slot = self._free_slots.pop()
        engine = self.arrays.engines[slot]
        engine["model"], engine["capacity_tok"] = self._model(model), model.kv_capacity_tok
        return slot

    def close_slot(self, slot: int) -> None:
        """Give up the slot of an idle engine. The epoch goes on, so that old events of the slot stay stale."""
        epoch = self.arrays.engines[slot]["epoch"]
        self.arrays.engines[slot : slot + 1] = _blank_engines(1)
        self.arrays.engines[slot]["epoch"] = epoch + 1
        self.arrays.prefixes[slot] = 0
        self._free_slots.append(slot)

    def fill_step(self, slot: int, num_tok: int) -> None:
        """The time of a step of `num_tok` tokens, wanted for the first time."""
        model = int(self.arrays.engines[slot]["model"])
        self.arrays.times[model, self._bodies + num_tok] = self._models[model].body_s(num_tok)

    def _model(self, model: StepModel) -> int:
        if model in self._models:
            return self._models.index(model)
        at = len(self._models)
        if at == len(self.arrays.times):
            self._extend("times")
            self.arrays.times[at:] = np.nan
        self._models.append(model)
        times, num = self.arrays.times[at], self.num_tables
        times[:NUM_FIGURES] = model.figures_s
        times[NUM_FIGURES : NUM_FIGURES + num] = [model.alpha(seqs) for seqs in range(num)]
        times[NUM_FIGURES + num : self._bodies] = [model.head_s(rows) for rows in range(num)]
        return at

    # -- keys ----------------------------------------------------------------------------------------------------------

    def key(self, trajectory: int, prompt: Prompt) -> int:
        """Key of a trajectory. A new one gets it here, and its prompt too."""
        key = self.keys.get(trajectory)
        if key is None:
            self._num_users[prompt] = self._num_users.get(prompt, 0) + 1
            key, prompt_key = self._key(trajectory), self._key(prompt)
            self.arrays.turns[key] = 0
            turn = self.arrays.turns[key]
            turn["prompt"], turn["prompt_tok"] = prompt_key, prompt[1]
        return key

    def retire(self, trajectory: int, prompt: Prompt) -> None:
        """A trajectory is over."""
        if trajectory not in self.keys:
            return
        self._retired[trajectory] = self.keys[trajectory]
        self._num_users[prompt] -= 1
        if not self._num_users[prompt]:
            del self._num_users[prompt]
            self._retired[prompt] = self.keys[prompt]

    def _key(self, name: Key) -> int:
        self._retired.pop(name, None)
        key = self.keys.get(name)
        if key is None:
            if not self._free_keys:
                self._collect()
            self.keys[name] = key = self._free_keys.pop()
            self.names[key] = name
        return key

    def _collect(self) -> None:
        """Free the retired keys that no cache holds; twice as many keys where that is not a quarter of them."""
        keys = np.fromiter(self._retired.values(), np.int64, len(self._retired))
        is_held = self.arrays.prefixes["is_evictable"][:, keys].any(axis=0)
        for name in [name for name, held in zip(self._retired, is_held, strict=True) if not held]:
            key = self._retired.pop(name)
            del self.keys[name]
            self.names[key] = None
            self._free_keys.append(key)
        num = len(self.names)
        if 4 * len(self._free_keys) < num:
            self._extend("turns")
            self._extend("prefixes", axis=1)
            self.names += [None] * num
            self._free_keys += list(range(num, 2 * num))[::-1]

    def _extend(self, name: str, axis: int = 0) -> None:
        old = getattr(self.arrays, name)
        self.arrays = self.arrays._replace(**{name: np.concatenate([old, np.zeros_like(old)], axis=axis)})


def _blank_engines(num: int) -> Any:
    engines = np.zeros(num, ENGINE)
    for name in LINKS:
        engines[name] = -1
    engines["boundary_s"], engines["at_rest"] = np.inf, 1
    return engines
