"""KV cache of one engine: a token budget, the turns that hold tokens, and an LRU of reusable prefixes.

A context is a prompt, shared by all samples of it, and the trajectory's own tokens after it. Both stay behind as
reusable prefixes when a turn ends and are evicted least recently used first, block by block from the end (vLLM frees
a request's blocks in reverse); an own part without its whole prompt is useless (prefix caching matches from the first
block), so a prompt is always more recent than what follows it.
"""

from __future__ import annotations

from collections import OrderedDict

Prompt = tuple[str, int]
"""Prompt id and its tokens: equal ones share their KV."""

Key = Prompt | int
"""A prompt, or the own part of a trajectory."""


class KvCache:
    """Sizes in tokens. `used_tok` counts everything resident; of that, the LRU's entries may be evicted."""

    def __init__(self, capacity_tok: int, block_tok: int) -> None:
        self.capacity_tok, self.block_tok = capacity_tok, block_tok
        self.used_tok = self.num_resets = 0
        self._lru: OrderedDict[Key, int] = OrderedDict()
        self._evictable_tok = 0
        self._held: dict[Prompt, int] = {}
        """Prompt -> number of turns that hold it."""

    @property
    def room_tok(self) -> int:
        """Tokens that can still be taken, evicting all prefixes."""
        return self.capacity_tok - self.used_tok + self._evictable_tok

    def open(self, trajectory: int, prompt: Prompt, context_tok: int) -> int | None:
        """Take room for a context and its first new token; returns the cached tokens, or None without room."""
        held = prompt in self._held
        shared = prompt[1] if held else self._lru.get(prompt, 0)
        is_whole = shared == prompt[1]
        own = self._lru.get(trajectory, 0) if is_whole else 0
        need = context_tok + 1 - own - shared
        reused = own + (0 if held else shared)
        if need > self.room_tok - reused:
            return None
        self._pop(trajectory, keep=is_whole)
        self._pop(prompt, keep=True)
        self._held[prompt] = self._held.get(prompt, 0) + 1
        self.take(need)
        hit = (shared + own) // self.block_tok * self.block_tok
        return max(0, min(hit, context_tok - 1))

    def take(self, num_tok: int) -> None:
        """Grow by `num_tok`, evicting prefixes; the caller has checked `room_tok`."""
        while (excess := self.used_tok + num_tok - self.capacity_tok) > 0:
            oldest, tok = next(iter(self._lru.items()))
            blocks_tok = -(-excess // self.block_tok) * self.block_tok
            if blocks_tok >= tok:
                self._pop(oldest, keep=False)
            else:
                self._lru[oldest] = tok - blocks_tok
                self._evictable_tok -= blocks_tok
                self.used_tok -= blocks_tok
        self.used_tok += num_tok

    def give_back(self, num_tok: int) -> None:
        """Free tokens that an open turn had taken and will not use."""
        self.used_tok -= num_tok

    def close(self, trajectory: int, prompt: Prompt, own_tok: int, *, reusable: bool = True) -> None:
        """A turn lets go of its context: `own_tok` resident tokens after the prompt stay as a prefix, or are freed."""
        if reusable and own_tok > 0:
            self._lru[trajectory] = own_tok
            self._evictable_tok += own_tok
        else:
            self.used_tok -= own_tok
        self._held[prompt] -= 1
        if self._held[prompt] == 0:
            del self._held[prompt]
            if reusable:
                self._lru[prompt] = prompt[1]
                self._evictable_tok += prompt[1]
            else:
                self.used_tok -= prompt[1]

    def cached_tok(self, trajectory: int) -> int:
        """Own tokens of a trajectory that wait as a prefix."""
        return self._lru.get(trajectory, 0)

    def adopt(self, trajectory: int, prompt: Prompt, own_tok: int) -> bool:
        """Receive a transferred context as a prefix; False (and nothing taken) where there is no room for it."""
        held = prompt in self._held
        shared = self._lru.get(prompt, 0)
        need = own_tok + (0 if held else prompt[1] - shared)
        if need > self.room_tok - shared or trajectory in self._lru:
            return False
        self._lru.pop(prompt, None)
        self._evictable_tok -= shared
        self.take(need)
        self._lru[trajectory] = own_tok
        self._evictable_tok += own_tok
        if not held:
            self._lru[prompt] = prompt[1]
            self._evictable_tok += prompt[1]
        return True

    def forget(self, trajectory: int) -> None:
        """Free a trajectory's prefix: it ended or moved away."""
        self._pop(trajectory, keep=False)

    def reset(self) -> None:
        """Drop all prefixes (weights changed)."""
        self.num_resets += 1
        self.used_tok -= self._evictable_tok
        self._lru.clear()
        self._evictable_tok = 0

    def check(self, active_own_tok: int) -> None:
        """Raise AssertionError unless the books balance. `active_own_tok`: own tokens of all open turns."""
        prompts = sum(prompt[1] for prompt in self._held)
        assert self._evictable_tok == sum(self._lru.values()), "LRU size"
        assert self.used_tok == prompts + active_own_tok + self._evictable_tok, "tokens resident"
        assert 0 <= self.used_tok <= self.capacity_tok, "KV capacity"

    def _pop(self, key: Key, *, keep: bool) -> None:
        """Take an entry out of the LRU; its tokens are freed unless they are kept by a turn."""
        tok = self._lru.pop(key, 0)
        self._evictable_tok -= tok
        if not keep:
            self.used_tok -= tok
