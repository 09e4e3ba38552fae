"""Live runs on two CPU cores that the simulator predicts (`libra fidelity`): calibration short, the rest longer.

Two layouts: one engine, where routers have no choice, and two engines with a bucket each, where a router decides which
of them waits. The learning rate is 0, so that trajectories keep their lengths; everything else runs as in any live run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from libra.core.registry import StudyArgs, StudySpec
from libra.results.cell import Cell, Value

WORKLOAD = "search-r1"
ONE, TWO = "cpu2", "cpu3"
PIPELINES = ("barrier", "async")
ROUTERS: Mapping[str, tuple[str, ...]] = {
    ONE: ("hand-blind",),
    TWO: ("hand-blind", "hand-mlfq", "hand-cmlfq"),
}
ENGINES: Mapping[str, dict[str, Value]] = {
    ONE: {"policy.engines": "1"},
    TWO: {"policy.engines": "1+1", "policy.buckets": "engines"},
}
COMMON: Mapping[str, Value] = {
    "live.learning_rate": 0,
    "live.test_every": 0,
    "live.prompts": 8,
    "live.samples": 8,
}
CALIBRATION_STEPS, STEPS = 12, 24


def _cell(study: str, cluster: str, policy: str, pipeline: str, steps: int, seed: int) -> Cell:
    overrides = {**COMMON, **ENGINES[cluster], "pipeline.kind": pipeline, "live.num_steps": steps}
    return Cell.make(study, WORKLOAD, cluster, "tiny", policy, backend="live", seed=seed, overrides=overrides)


def calibration(args: StudyArgs) -> Iterator[Cell]:
    """One router and one pipeline on each layout."""
    for cluster in ROUTERS:
        for seed in range(args.num_seeds):
            yield _cell("fidelity_calibration", cluster, "hand-blind", "barrier", args.num_steps, seed)


def predicted(args: StudyArgs) -> Iterator[Cell]:
    """Every router and pipeline on each layout, longer than any calibration."""
    for cluster, routers in ROUTERS.items():
        for policy in routers:
            for pipeline in PIPELINES:
                for seed in range(args.num_seeds):
                    yield _cell("fidelity", cluster, policy, pipeline, args.num_steps, seed)


CALIBRATION = StudySpec(
    "fidelity_calibration",
    "short live runs that the table of `libra fidelity` is fitted to",
    calibration,
    num_seeds=1,
    num_steps=CALIBRATION_STEPS,
)
STUDY = StudySpec(
    "fidelity",
    "longer live runs that the simulator predicts: routers, two layouts, two pipelines",
    predicted,
    ("fidelity",),
    num_seeds=1,
    num_steps=STEPS,
)
