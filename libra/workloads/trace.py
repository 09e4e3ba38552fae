"""Replays an imported trace: real turns, payloads and tool times, in groups, reshuffled every epoch, without drift.

Traces are seldom RL rollouts: groups may be small or missing, times unknown, lengths beyond the model. What is done
about it is an option each, and said in `warnings`. A part of the trace is held back for `profile`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path

import msgspec
import numpy as np
from pydantic import Field

from libra.core.records import Trajectory
from libra.core.registry import Options, WorkloadSpec
from libra.core.rng import stream
from libra.workloads.base import PROFILE_GROUP, Parameter, Provenance, document
from libra.workloads.trace_file import SUFFIXES, read_trace
from libra.workloads.trace_fit import Cleaning, OverLimit

NAME = "trace"

Unit = tuple[Trajectory, ...]
"""What is drawn without replacement: a prompt's samples, or one trajectory of a trace without groups."""


class ReplayOptions(Options):
    """`num_steps` unset: one pass over the trace."""

    prompts: int = Field(default=2, gt=0)
    group_size: int = Field(default=16, gt=0)
    num_steps: int | None = Field(default=None, gt=0)
    over_limit: OverLimit = "error"
    default_tool_s: float = Field(default=1.0, ge=0)
    tool_cap_s: float = Field(default=600.0, gt=0)
    min_turns: int = Field(default=1, gt=0)
    profile_share: float = Field(default=0.2, gt=0, lt=1)


class TraceOptions(ReplayOptions):
    """`file` is a canonical trace."""

    file: str


SOURCES: Mapping[str, tuple[Provenance, str]] = {
    "file": ("reported", "The trace; its header says where it comes from."),
    "prompts": ("assumed", "Groups per training step; the paper does not give its batch."),
    "group_size": ("reported", "The articles on the paper: 16 samples per prompt."),
    "num_steps": ("derived", "As many as one pass over the trace gives."),
    "over_limit": ("assumed", "What to do with trajectories beyond the model's limit; nothing is cut unasked."),
    "default_tool_s": ("assumed", "Taken where the trace has no tool time."),
    "tool_cap_s": ("assumed", "Longer times in coding-agent sessions are mostly waits for a human."),
    "min_turns": ("assumed", "Trajectories with fewer turns are left out; 1 keeps all."),
    "profile_share": ("assumed", "Held back for profiling, so that no policy is tuned on what it is judged on."),
}


class TraceWorkload:
    """A `Workload`. Raises `TraceError` for a trace that cannot be read, is too long or has nothing left."""

    def __init__(self, path: Path, name: str, options: ReplayOptions, seed: int, max_context_tok: int) -> None:
        self.name = name
        self.options, self.seed, self.max_context_tok = options, seed, max_context_tok
        self.group_size, self.batch = options.group_size, options.prompts * options.group_size
        self._header, rows = read_trace(path)
        cleaning = Cleaning(str(path), max_context_tok)
        rows = cleaning.drop_short(rows, options.min_turns)
        rows = cleaning.fill(rows, options.default_tool_s, options.tool_cap_s)
        rows = cleaning.fit(rows, options.over_limit)
        units = _units(rows)
        self.has_groups = any(len(unit) > 1 for unit in units)
        self._units, self._held_back = self._divide(units)
        self._order = lru_cache(maxsize=2)(self._draw_order)
        self.num_steps = options.num_steps or max(1, self._groups_per_epoch // options.prompts)
        self.warnings = (*cleaning.warnings, *self._find_warnings(units))

    def group(self, index: int) -> tuple[Trajectory, ...]:
        """See `Workload`; an epoch is over when fewer trajectories than a group are left."""
        assert index >= 0, f"group {index}"
        epoch, position = divmod(index, self._groups_per_epoch)
        if self.has_groups:
            unit = self._units[self._order(epoch)[position]]
            return self._fill(unit, index, self._stream("samples", index))
        start = position * self.group_size
        chosen = [self._units[k][0] for k in self._order(epoch)[start : start + self.group_size]]
        return self._unrelated(chosen, index)

    def profile(self, num_groups: int) -> tuple[Trajectory, ...]:
        """See `Workload`; from the part held back, repeated when more is asked for than it holds."""
        found: list[Trajectory] = []
        for k in range(num_groups):
            rng = self._stream("profile", k)
            if self.has_groups:
                unit = self._held_back[k % len(self._held_back)]
                found += self._fill(unit, PROFILE_GROUP + k, rng)
            else:
                chosen = rng.permutation(len(self._held_back))[: self.group_size]
                found += self._unrelated([self._held_back[j][0] for j in chosen], PROFILE_GROUP + k)
        return tuple(found)

    def parameters(self) -> tuple[Parameter, ...]:
        """See `Workload`."""
        header = self._header
        told = [("source", header.source), ("token_counting", header.token_counting)]
        told += [("note", note) for note in header.notes]
        facts = [Parameter(name, value, "reported", "The trace's header.") for name, value in told]
        steps = Parameter("steps", f"{self.num_steps:,}", "derived", "num_steps, or one pass over the trace.")
        return (*document(self.options, SOURCES), *facts, steps)

    @property
    def _groups_per_epoch(self) -> int:
        return len(self._units) if self.has_groups else max(1, len(self._units) // self.group_size)

    def _fill(self, unit: Unit, index: int, rng: np.random.Generator) -> tuple[Trajectory, ...]:
        """A prompt's samples in random order, from the start again until the group is full."""
        shuffled = [unit[k] for k in rng.permutation(len(unit))]
        samples = enumerate(islice(cycle(shuffled), self.group_size))
        return tuple(msgspec.structs.replace(row, group=index, sample=k) for k, row in samples)

    def _unrelated(self, rows: Sequence[Trajectory], index: int) -> tuple[Trajectory, ...]:
        """Every trajectory with a prompt id of its own, also when it comes again: there is no history to learn from."""
        samples = enumerate(islice(cycle(rows), self.group_size))
        return tuple(
            msgspec.structs.replace(row, prompt_id=f"{row.prompt_id}@{index}.{k}", group=index, sample=k)
            for k, row in samples
        )

    def _divide(self, units: list[Unit]) -> tuple[list[Unit], list[Unit]]:
        if len(units) == 1:
            return units, units
        order = self._stream("held-back").permutation(len(units))
        num_held = min(max(round(self.options.profile_share * len(units)), 1), len(units) - 1)
        held = set(order[:num_held].tolist())
        return [u for k, u in enumerate(units) if k not in held], [units[k] for k in sorted(held)]

    def _draw_order(self, epoch: int) -> list[int]:
        order: list[int] = self._stream("order", epoch).permutation(len(self._units)).tolist()
        return order

    def _stream(self, *what: object) -> np.random.Generator:
        return stream("workload", self.name, self.seed, *what)

    def _find_warnings(self, units: list[Unit]) -> list[str]:
        size, found = self.group_size, []
        if self.has_groups:
            few, many = min(map(len, units)), max(map(len, units))
            if few < size:
                samples = f"{few}" if few == many else f"{few} to {many}"
                found.append(f"The prompts have {samples} samples, repeated to {size}: siblings are copies.")
            if many > size:
                found.append(f"The prompts have up to {many} samples; a group takes {size} of them.")
        else:
            found.append("No groups in this trace: groups are made of unrelated trajectories, prompt history is empty.")
            if len(self._units) < size:
                found.append(f"Only {len(self._units)} trajectories, repeated to groups of {size}.")
        if len(units) == 1:
            found.append("The trace has a single prompt: the profile is made of what is replayed.")
        num_groups = self.num_steps * self.options.prompts
        if num_groups > self._groups_per_epoch:
            again = num_groups / self._groups_per_epoch
            found.append(f"{num_groups:,} groups are asked for: the trace is replayed {again:.1f} times, unchanged.")
        return found


def _units(rows: Sequence[Trajectory]) -> list[Unit]:
    by_group: dict[int, list[Trajectory]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    return [tuple(samples) for samples in by_group.values()]


def _stem(path: Path) -> str:
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")
    return path.name.removesuffix(suffix)


def build(options: TraceOptions, seed: int, max_context_tok: int) -> TraceWorkload:
    """For `WorkloadSpec`."""
    path = Path(options.file)
    return TraceWorkload(path, f"{NAME}:{_stem(path)}", options, seed, max_context_tok)


WORKLOAD = WorkloadSpec(
    name=NAME,
    summary="trace:FILE, an imported trace (canonical .jsonl.gz or .parquet) replayed in groups",
    build=build,
    options=TraceOptions,
)
