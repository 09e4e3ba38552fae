"""The first plan's profile: lengths of demonstrations by the policy's own tokenizer, or of the workload's generator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import WorkloadSpec, parse_options
from libra.workloads.environments.base import Demonstration, Environment
from libra.workloads.trace_file import TraceHeader, write_trace
from libra.workloads.trace_fit import Cleaning

NUM_TRAJECTORIES = 64
"""Enough for a mean and a tail; making them takes well under a second."""
GENERATOR_CONTEXT_TOK = 32_768
"""Generators refuse a context of which prompts are a large part; the workloads' own models have as much (Qwen3)."""


def write_profile(path: Path, environment: Environment, seed: int, count: Callable[[str], int]) -> None:
    """A canonical trace. Tools take no time in it: a demonstration calls none."""
    shown = islice(environment.demonstrations(seed), NUM_TRAJECTORIES)
    rows = [_trajectory(number, each, count) for number, each in enumerate(shown)]
    header = TraceHeader("demonstrations", "the policy's own tokenizer, each segment on its own",
                         notes=("Demonstrations, not samples: their tool times are not known.",))  # fmt: skip
    write_trace(path, header, rows)


def write_expected_profile(path: Path, workload: WorkloadSpec, seed: int, max_context_tok: int) -> None:
    """A canonical trace for prepared tasks, which come without demonstrations: what the workload's generator draws, cut
    where the run cuts it. Raises `TraceError` where the context holds no more than prompts."""
    options = parse_options(workload.options, {}, f"workload {workload.name}")
    drawn = workload.build(options, seed, max(max_context_tok, GENERATOR_CONTEXT_TOK))
    cleaning = Cleaning(f"profile of {workload.name}", max_context_tok)
    rows = cleaning.fit(tuple(drawn.profile(NUM_TRAJECTORIES)[:NUM_TRAJECTORIES]), "truncate")
    notes = ("Drawn, not measured, at the start of its drift.", *cleaning.warnings)
    write_trace(path, TraceHeader("generator", "as the generator counts", notes=notes), rows)


def _trajectory(number: int, shown: Demonstration, count: Callable[[str], int]) -> Trajectory:
    turns: list[Turn] = []
    for segment in shown.segments:
        size_tok = count(segment.text)
        if segment.by_policy:
            turns.append(Turn(size_tok))
        else:
            turns[-1] = Turn(turns[-1].generated_tok, ToolReturn("tool", size_tok, "unknown"))
    if turns and turns[-1].tool is not None:
        turns.append(Turn(0))
    return Trajectory(f"demonstration-{number}", number, 0, count(shown.prompt), tuple(turns),
                      reward=float(shown.is_right))  # fmt: skip
