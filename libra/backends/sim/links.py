"""Who waits for whom on the wires: KV transfers that share an end follow one another, each at full bandwidth.

The ends are the two engines' links inside a node and the two nodes' networks between nodes, full duplex. Fair sharing
would deliver the last of them at the same time and the first ones later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

End = tuple[str, int]
"""Direction and number of an engine or a node."""


@dataclass
class Links:
    """When each end is free again (s)."""

    _free_s: dict[End, float] = field(default_factory=dict)

    def wait_s(self, ends: tuple[End, End], now_s: float) -> float:
        """How long a transfer between `ends` that is asked for now waits."""
        return max(0.0, *(self._free_s.get(end, 0.0) - now_s for end in ends))

    def occupy(self, ends: tuple[End, End], until_s: float) -> None:
        """A transfer holds both ends until `until_s`."""
        for end in ends:
            self._free_s[end] = until_s
