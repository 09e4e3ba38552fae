"""`recorded:NAME`: the recordings of our own live runs that ship with the product, replayed as any other trace."""

from __future__ import annotations

from functools import partial

from libra.core.registry import WorkloadSpec
from libra.workloads.recordings import NAMES, PREFIX, trace_path
from libra.workloads.trace import ReplayOptions, TraceWorkload

WARNING = (
    "A recording of a tiny policy that was trained live on CPU cores: token counts and tool times are real, but they "
    "are not those of the model that is simulated."
)


def build(name: str, options: ReplayOptions, seed: int, max_context_tok: int) -> TraceWorkload:
    """For `WorkloadSpec`. Whole groups as they were sampled: with 16 in a group, no sibling is a copy."""
    workload = TraceWorkload(trace_path(name), f"{PREFIX}{name}", options, seed, max_context_tok)
    workload.warnings = (WARNING, *workload.warnings)
    return workload


WORKLOADS = [
    WorkloadSpec(
        name=f"{PREFIX}{name}",
        summary=f"{name} recorded live: a tiny policy's turns, tool returns and tool times, replayed in groups",
        build=partial(build, name),
        options=ReplayOptions,
    )
    for name in NAMES
]
