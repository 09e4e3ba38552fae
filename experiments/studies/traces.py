"""Every imported trace through every system: real turns, tool returns and tails instead of generators."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.study import SYSTEMS, Overrides, grid
from libra.core.errors import ConfigError
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell

POLICIES = (*SYSTEMS, "best-homogeneous", "pattern-blind", "pattern-prompt-history", "pattern-cmlfq", "pattern-oracle")


OVERRIDES: Overrides = {
    "workload.over_limit": "shorten_prompt",
    "workload.min_turns": 2,
    "workload.group_size": 4,
    "workload.prompts": 8,
}
"""Coding-agent sessions start with prompts of 100K tokens, beyond the model: turns are kept, prompts cut. One-turn
trajectories have no tool return. Groups of four are what tau-bench has, so no sibling is a copy."""


def cells(args: StudyArgs) -> Iterator[Cell]:
    """Raises `ConfigError` when no trace was imported."""
    if not args.traces:
        raise ConfigError(
            "no imported trace",
            where="study traces",
            mend="`libra import FORMAT FILE... --out traces/NAME.jsonl.gz`, or name files: --trace FILE",
        )
    workloads = tuple(f"trace:{path}" for path in args.traces)
    yield from grid("traces", args, POLICIES, workloads=workloads, variants=(OVERRIDES,))


STUDY = StudySpec("traces", "imported traces through all systems", cells, ("traces",), num_seeds=2, num_steps=12)
