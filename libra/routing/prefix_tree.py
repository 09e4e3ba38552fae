"""C-MLFQ's memory: remaining length after each prefix of tool returns (paper: key = prompt id + ordered states).

A node is named by a number made of its path, so that the whole tree is one table with one bound, least recently used
out first, and a lookup costs the same at any depth. Every observation is of the *remaining* length at one tool return
and feeds four nodes, from the paper's own key to ever coarser ones; a lookup takes the first with enough evidence:

`prefix` prompt and states; `prompt` prompt and number of returns; `shared-prefix` states of any prompt; `shared` number
of returns. The paper falls back to the parent, whose remaining length is counted from an earlier return (at the root:
the total); the coarser keys here ask the same question, what is left from *this* return on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, NamedTuple

from libra.routing.sample import MIN_EVIDENCE, Length, Sample, Summary, length

Level = Literal["prefix", "prompt", "shared-prefix", "shared"]
LEVELS: tuple[Level, ...] = ("prefix", "prompt", "shared-prefix", "shared")

MAX_NODES = 200_000
"""About 40 MB, which R2E-Gym fills in some 330 steps of 32 trajectories. From then on memory is flat, and what has not
been met for longest goes: prompts that come back only in the next epoch, and paths that only one trajectory took."""

PRIME = 2**60 - 93
"""Names are numbers below this largest prime of 60 bits, the most that fits a small integer object. With 200,000 live
names, the chance that any two collide is about 2e-8."""
FACTOR = 0x9E3779B97F4A7C1
"""Base of the polynomials in `Walk`: 60 bits of the golden ratio."""


class Visit(NamedTuple):
    """Where a trajectory stood when a tool returned: names of its nodes in the order of `LEVELS`, context tokens."""

    prefix: int
    prompt: int
    shared_prefix: int
    shared: int
    context_tok: int


class Found(NamedTuple):
    """Statistics of the remaining length and the level that they come from."""

    level: Level
    remaining: Summary


class Walk:
    """A live trajectory's way through the tree.

    The states are the digits of a number to the base `FACTOR`, modulo `PRIME`, and the prompt is one more before them:
    a name differs with any state and with their order, and the next one takes two multiplications.
    """

    __slots__ = ("_prompt", "_states", "visits")

    def __init__(self, prompt_id: str) -> None:
        self._prompt, self._states = number_of(prompt_id), 0
        self.visits: list[Visit] = []

    def on(self, state: str, context_tok: int) -> Visit:
        """One return further."""
        self._prompt = prompt = self._prompt * FACTOR % PRIME
        self._states = states = (self._states * FACTOR + number_of(state)) % PRIME
        visit = Visit((prompt + states) % PRIME, prompt, states, len(self.visits) + 1, context_tok)
        self.visits.append(visit)
        return visit


@lru_cache(maxsize=4096)
def number_of(text: str) -> int:
    """A number below `PRIME` for a state or a prompt, equal on every machine; states recur, so they are kept."""
    return int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "little") % PRIME


class PrefixTree:
    """Bounded table of nodes. Survives weight syncs: nothing here depends on a policy version."""

    def __init__(
        self, *, min_evidence: int = MIN_EVIDENCE, max_nodes: int = MAX_NODES, levels: tuple[Level, ...] = LEVELS
    ) -> None:
        self.min_evidence, self.max_nodes, self.levels = min_evidence, max_nodes, levels
        self._levels = tuple((LEVELS.index(level), level) for level in levels)
        self._nodes: OrderedDict[int, Sample | Length] = OrderedDict()
        """By name. Most nodes never meet a second length, and are no more than their first."""

    def __len__(self) -> int:
        return len(self._nodes)

    def find(self, visit: Visit) -> Found | None:
        """The finest level with enough evidence; None where no level has it."""
        nodes = self._nodes
        for at, level in self._levels:
            node = nodes.get(visit[at])
            if node is None:
                continue
            nodes.move_to_end(visit[at])
            sample = node if isinstance(node, Sample) else Sample(node)
            if sample.evidence >= self.min_evidence:
                return Found(level, sample.summary())
        return None

    def learn(
        self, visits: Sequence[Visit], total_tok: int, *, is_censored: bool = False, is_evidence: bool = True
    ) -> None:
        """Walk a finished trajectory's returns and note what was left after each."""
        nodes = self._nodes
        for visit in visits:
            left = length(max(0, total_tok - visit.context_tok), is_censored, is_evidence)
            for at, _ in self._levels:
                name = visit[at]
                node = nodes.get(name)
                if node is None:
                    nodes[name] = left
                    continue
                nodes.move_to_end(name)
                if isinstance(node, Sample):
                    node.add(left)
                else:
                    nodes[name] = Sample(node, left)
        while len(nodes) > self.max_nodes:
            nodes.popitem(last=False)
