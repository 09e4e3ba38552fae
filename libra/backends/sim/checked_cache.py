"""The KV cache under `sim.check=true`: within its capacity, no prefix hit on what was never computed on the engine."""

from __future__ import annotations

from libra.backends.sim.kv_cache import KvCache, Prompt
from libra.backends.sim.options import SimOptions


class InvariantError(AssertionError):
    """The simulator broke a law of its own: a defect, never a user's mistake."""


def ensure(holds: bool, law: str, where: str) -> None:
    """Raises `InvariantError` with the law and the place. Unlike `assert` it also works under `python -O`."""
    if not holds:
        raise InvariantError(f"{law} ({where})")


class CheckedKvCache(KvCache):
    """A KV cache that remembers what was computed or received here under the present weights."""

    def __init__(self, capacity_tok: int, block_tok: int) -> None:
        super().__init__(capacity_tok, block_tok)
        self._own_tok: dict[int, int] = {}
        self._prompts: set[Prompt] = set()

    def open(self, trajectory: int, prompt: Prompt, context_tok: int) -> int | None:
        hit = super().open(trajectory, prompt, context_tok)
        if hit is not None:
            known = (prompt[1] if prompt in self._prompts else 0) + self._own_tok.get(trajectory, 0)
            ensure(hit <= known, f"a hit of {hit} tokens where {known} were computed", f"trajectory {trajectory}")
            # A sample that is admitted beside this one reads its prompt's blocks after they are written.
            self._prompts.add(prompt)
            self._check_capacity()
        return hit

    def take(self, num_tok: int) -> None:
        super().take(num_tok)
        self._check_capacity()

    def close(self, trajectory: int, prompt: Prompt, own_tok: int, *, reusable: bool = True) -> None:
        super().close(trajectory, prompt, own_tok, reusable=reusable)
        self._own_tok[trajectory] = own_tok if reusable else 0
        self._check_capacity()

    def adopt(self, trajectory: int, prompt: Prompt, own_tok: int) -> bool:
        taken = super().adopt(trajectory, prompt, own_tok)
        if taken:
            self._own_tok[trajectory] = own_tok
            self._prompts.add(prompt)
        return taken

    def forget(self, trajectory: int) -> None:
        super().forget(trajectory)
        self._own_tok.pop(trajectory, None)

    def reset(self) -> None:
        super().reset()
        self._own_tok.clear()
        self._prompts = set(self._held)

    def _check_capacity(self) -> None:
        ensure(0 <= self.used_tok <= self.capacity_tok, f"{self.used_tok} KV tokens of {self.capacity_tok}", "engine")


def make_cache(capacity_tok: int, options: SimOptions) -> KvCache:
    """An engine's KV cache, the checked kind where the options ask for it."""
    return (CheckedKvCache if options.check else KvCache)(capacity_tok, options.block_tok)
