"""Every recording and imported trace through every system: real turns, tool returns and tails instead of generators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from experiments.study import SYSTEMS, Overrides, grid
from libra.core.errors import ConfigError
from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell
from libra.workloads.recordings import PREFIX, recording_in
from libra.workloads.trace_file import read_trace

POLICIES = (*SYSTEMS, "best-homogeneous", "pattern-blind", "pattern-prompt-history", "pattern-cmlfq", "pattern-oracle")


GROUP_SIZE = 4
"""For traces without groups: what tau-bench has."""


def cells(args: StudyArgs) -> Iterator[Cell]:
    """Raises `ConfigError` when there is no trace."""
    if not args.traces:
        raise ConfigError(
            "no trace",
            where="study traces",
            mend="`libra import FORMAT FILE... --out traces/NAME.jsonl.gz`, or name files: --trace FILE",
        )
    options = dict(map(_workload, args.traces))
    for cell in grid("traces", args, POLICIES, workloads=tuple(options)):
        overrides = {**dict(cell.overrides), **options[cell.workload]}
        yield Cell.make(
            cell.study, cell.workload, cell.cluster, cell.model, cell.policy, seed=cell.seed, overrides=overrides
        )


def _workload(path: Path) -> tuple[str, Overrides]:
    """A recording is a workload of its own, whose defaults are what was recorded."""
    name = recording_in(path)
    return (f"{PREFIX}{name}", {}) if name else (f"trace:{path}", options_for(path))


def options_for(path: Path) -> Overrides:
    """Groups as the trace has them, so that no sibling is a copy.

    Coding-agent sessions start with prompts of 100K tokens, beyond the model: turns are kept, prompts cut. One-turn
    trajectories have no tool return and are left out, unless all are of one turn.
    """
    _, rows = read_trace(path)
    sizes = Counter(row.group for row in rows)
    return {
        "workload.over_limit": "shorten_prompt",
        "workload.min_turns": 2 if any(len(row.turns) > 1 for row in rows) else 1,
        "workload.group_size": max(sizes.values()) if max(sizes.values()) > 1 else GROUP_SIZE,
        "workload.prompts": 8,
    }


STUDY = StudySpec(
    "traces",
    "recordings and imported traces through all systems",
    cells,
    ("traces",),
    num_seeds=2,
    num_steps=12,
    takes_traces=True,
)
