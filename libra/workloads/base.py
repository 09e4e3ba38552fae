"""What a workload is: groups of trajectories by number, drawn independently of policy and order of asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from libra.core.records import Trajectory
from libra.core.registry import Options

PROFILE_GROUP = 1_000_000_000
"""Number of the first profile group: above any training group, so `group/sample` stays unique in a workload."""

Provenance = Literal["reported", "derived", "assumed"]


@dataclass(frozen=True)
class Parameter:
    """One documented parameter: its value as text, where it comes from and why it has this value."""

    name: str
    value: str
    provenance: Provenance
    source: str


@runtime_checkable
class Workload(Protocol):
    """A stream of prompt groups. Group `g` belongs to training step `g // groups_per_step` (drift follows it)."""

    name: str
    batch: int
    """Trajectories per training step; a multiple of `group_size`."""
    group_size: int
    num_steps: int
    max_context_tok: int
    warnings: tuple[str, ...]
    """What the user should know about the data (lengths truncated, missing tool times), one sentence each."""

    def group(self, index: int) -> Sequence[Trajectory]:
        """The `group_size` trajectories of group `index` (any integer from 0); equal on every call."""
        ...

    def profile(self, num_groups: int) -> Sequence[Trajectory]:
        """Trajectories of the initial workload on draws that no `group` call returns."""
        ...

    def parameters(self) -> Sequence[Parameter]:
        """Every parameter with its provenance, for reports."""
        ...


def document(options: Options, sources: Mapping[str, tuple[Provenance, str]]) -> tuple[Parameter, ...]:
    """One `Parameter` per option. `sources` must cover every option; a value that the user changed is marked so."""
    found = []
    for name, field in type(options).model_fields.items():
        value, (provenance, source) = getattr(options, name), sources[name]
        if not field.is_required() and value != field.default:
            source = f"Set for this run; the default is {_text(field.default)} ({provenance}: {source})"
            provenance = "assumed"
        found.append(Parameter(name, _text(value), provenance, source))
    return tuple(found)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
