"""C-MLFQ's memory: remaining length after each prefix of tool returns (paper: key = prompt id + ordered states).

A node is named by a digest of its path, so that the whole tree is one table with one bound, least recently used out
first, and a lookup costs the same at any depth. Every observation is of the *remaining* length at one tool return and
feeds four nodes, from the paper's own key to ever coarser ones; a lookup takes the first with enough evidence:

`prefix` prompt and states; `prompt` prompt and number of returns; `shared-prefix` states of any prompt; `shared` number
of returns. The paper falls back to the parent, whose remaining length is counted from an earlier return (at the root:
the total); the coarser keys here ask the same question, what is left from *this* return on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Literal, NamedTuple

from libra.routing.sample import MIN_EVIDENCE, Length, Sample, Summary

Level = Literal["prefix", "prompt", "shared-prefix", "shared"]
LEVELS: tuple[Level, ...] = ("prefix", "prompt", "shared-prefix", "shared")

MAX_NODES = 200_000
"""About 100 MB; the paper's runs make 16,000 (500 steps of 32) to 64,000 trajectories of some ten returns each."""

ROOT = b""
DIGEST_BYTES = 8
"""With 200,000 live names of 64 bits, the chance that any two collide is about 1e-9."""


class Visit(NamedTuple):
    """Where a trajectory stood when a tool returned: digest of its states, returns so far (from 1), context tokens."""

    path: bytes
    depth: int
    context_tok: int


class Found(NamedTuple):
    """Statistics of the remaining length and the level that they come from."""

    level: Level
    remaining: Summary


def extend(path: bytes, state: str) -> bytes:
    """Name of the node one state further."""
    return blake2b(path + state.encode(), digest_size=DIGEST_BYTES).digest()


class PrefixTree:
    """Bounded table of nodes. Survives weight syncs: nothing here depends on a policy version."""

    def __init__(
        self, *, min_evidence: int = MIN_EVIDENCE, max_nodes: int = MAX_NODES, levels: tuple[Level, ...] = LEVELS
    ) -> None:
        self.min_evidence, self.max_nodes, self.levels = min_evidence, max_nodes, levels
        self._nodes: OrderedDict[tuple[str | None, bytes | int], Sample] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, prompt_id: str, visit: Visit) -> Found | None:
        """The finest level with enough evidence; None where no level has it."""
        for level, key in self._keys(prompt_id, visit):
            node = self._nodes.get(key)
            if node is None:
                continue
            self._nodes.move_to_end(key)
            summary = node.summary()
            if summary.evidence >= self.min_evidence:
                return Found(level, summary)
        return None

    def learn(
        self,
        prompt_id: str,
        visits: Sequence[Visit],
        total_tok: int,
        *,
        is_censored: bool = False,
        is_evidence: bool = True,
    ) -> None:
        """Walk a finished trajectory's returns and note what was left after each."""
        for visit in visits:
            length = Length(max(0, total_tok - visit.context_tok), is_censored, is_evidence)
            for _, key in self._keys(prompt_id, visit):
                node = self._nodes.get(key)
                if node is None:
                    node = self._nodes[key] = Sample()
                else:
                    self._nodes.move_to_end(key)
                node.add(length)
        while len(self._nodes) > self.max_nodes:
            self._nodes.popitem(last=False)

    def _keys(self, prompt_id: str, visit: Visit) -> Iterator[tuple[Level, tuple[str | None, bytes | int]]]:
        keys: dict[Level, tuple[str | None, bytes | int]] = {
            "prefix": (prompt_id, visit.path),
            "prompt": (prompt_id, visit.depth),
            "shared-prefix": (None, visit.path),
            "shared": (None, visit.depth),
        }
        return ((level, keys[level]) for level in self.levels)
