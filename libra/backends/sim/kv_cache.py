"""KV cache of one engine: a token budget, the turns that hold tokens, and an LRU of reusable prefixes.

A context is a prompt, shared by the samples of a group, and the trajectory's own tokens after it. Both stay behind as
reusable prefixes when a turn ends and are evicted least recently used first; an own part without its prompt is
useless (prefix caching matches from the first block), so a prompt is always more recent than what follows it.
"""

from __future__ import annotations

from collections import OrderedDict

Key = tuple[str, int]


class KvCache:
    """Sizes in tokens. `used_tok` counts everything resident; of that, the LRU's entries may be evicted."""

    def __init__(self, capacity_tok: int, block_tok: int) -> None:
        self.capacity_tok, self.block_tok = capacity_tok, block_tok
        self.used_tok = 0
        self._lru: OrderedDict[Key, int] = OrderedDict()
        self._evictable_tok = 0
        self._held_prompts: dict[int, list[int]] = {}
        """Group -> [prompt tokens, turns that hold it]."""

    @property
    def room_tok(self) -> int:
        """Tokens that can still be taken, evicting all prefixes."""
        return self.capacity_tok - self.used_tok + self._evictable_tok

    def open(self, trajectory: int, group: int, prompt_tok: int, context_tok: int) -> int | None:
        """Take room for a context and its first new token; returns the cached tokens, or None without room."""
        held = self._held_prompts.get(group)
        prompt_there = held is not None or ("p", group) in self._lru
        own = self._lru.get(("t", trajectory), 0) if prompt_there else 0
        need = context_tok + 1 - own - (prompt_tok if prompt_there else 0)
        reused = own + (self._lru.get(("p", group), 0) if held is None else 0)
        if need > self.room_tok - reused:
            return None
        self._pop(("t", trajectory), keep=prompt_there)
        if held is None:
            self._pop(("p", group), keep=True)
            self._held_prompts[group] = held = [prompt_tok, 0]
        held[1] += 1
        self.take(need)
        if not prompt_there:
            return 0
        hit = (prompt_tok + own) // self.block_tok * self.block_tok
        return max(0, min(hit, context_tok - 1))

    def take(self, num_tok: int) -> None:
        """Grow by `num_tok`, evicting prefixes; the caller has checked `room_tok`."""
        while self.used_tok + num_tok > self.capacity_tok:
            self._pop(next(iter(self._lru)), keep=False)
        self.used_tok += num_tok

    def give_back(self, num_tok: int) -> None:
        """Free tokens that an open turn had taken and will not use."""
        self.used_tok -= num_tok

    def close(self, trajectory: int, group: int, own_tok: int, *, reusable: bool = True) -> None:
        """A turn lets go of its context: `own_tok` resident tokens after the prompt stay as a prefix, or are freed."""
        if reusable and own_tok > 0:
            self._lru[("t", trajectory)] = own_tok
            self._evictable_tok += own_tok
        else:
            self.used_tok -= own_tok
        held = self._held_prompts[group]
        held[1] -= 1
        if held[1] == 0:
            del self._held_prompts[group]
            if reusable:
                self._lru[("p", group)] = held[0]
                self._evictable_tok += held[0]
            else:
                self.used_tok -= held[0]
        elif ("p", group) in self._lru:
            self._lru.move_to_end(("p", group))

    def cached_tok(self, trajectory: int) -> int:
        """Own tokens of a trajectory that wait as a prefix."""
        return self._lru.get(("t", trajectory), 0)

    def adopt(self, trajectory: int, group: int, prompt_tok: int, own_tok: int) -> bool:
        """Receive a transferred context as a prefix; False (and nothing taken) where there is no room for it."""
        prompt_there = group in self._held_prompts or ("p", group) in self._lru
        need = own_tok + (0 if prompt_there else prompt_tok)
        if need > self.room_tok or ("t", trajectory) in self._lru:
            return False
        if ("p", group) in self._lru:
            self._lru.move_to_end(("p", group))
        self.take(need)
        self._lru[("t", trajectory)] = own_tok
        if not prompt_there:
            self._lru[("p", group)] = prompt_tok
        self._evictable_tok += need
        return True

    def forget(self, trajectory: int) -> None:
        """Free a trajectory's prefix: it ended or moved away."""
        self._pop(("t", trajectory), keep=False)

    def reset(self) -> None:
        """Drop all prefixes (weights changed)."""
        self.used_tok -= self._evictable_tok
        self._lru.clear()
        self._evictable_tok = 0

    def check(self, active_own_tok: int) -> None:
        """Raise AssertionError unless the books balance. `active_own_tok`: own tokens of all open turns."""
        prompts = sum(held[0] for held in self._held_prompts.values())
        assert self._evictable_tok == sum(self._lru.values()), "LRU size"
        assert self.used_tok == prompts + active_own_tok + self._evictable_tok, "tokens resident"
        assert 0 <= self.used_tok <= self.capacity_tok, "KV capacity"

    def _pop(self, key: Key, *, keep: bool) -> None:
        """Take an entry out of the LRU; its tokens are freed unless they are kept by a turn."""
        tok = self._lru.pop(key, 0)
        self._evictable_tok -= tok
        if not keep:
            self.used_tok -= tok
