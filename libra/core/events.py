"""Everything that a policy may know, as a frozen tagged union. `t_s` is the only time a policy sees.

A trajectory is named by an integer that is unique in the run. True lengths reach only policies marked
`uses_oracle`, as `oracle_total_tok` of the start event.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from libra.core.plan import Allocation, TrainLayout
from libra.core.records import ToolStatus, Trajectory, TrajectoryStatus

PipelineKind = Literal["colocated", "barrier", "async"]


class PipelineSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How rollout and training overlap.

    `colocated`: both on the same GPUs, one after the other, on-policy. `barrier`: one-step-off; step k+1 is rolled
    out while step k trains, both meet at the weight sync. `async`: continuous rollout; `staleness` is the
    largest age in versions (eta) of a trained trajectory, `in_flight_cap` the largest number of live
    trajectories (0 = no cap).
    """

    kind: PipelineKind = "barrier"
    staleness: int = 1
    in_flight_cap: int = 0


class RunStart(msgspec.Struct, frozen=True, tag="run_start"):
    """First event. `profile` holds trajectories of a profiling run on separate draws of the *initial* workload.

    `batch` is trajectories per training step, `group_size` samples per prompt, `max_context_tok` the sequence limit.
    """

    t_s: float
    cluster: str
    model: str
    pipeline: PipelineSpec
    batch: int
    group_size: int
    num_steps: int
    max_context_tok: int
    profile: tuple[Trajectory, ...] = ()


class TrajectoryStart(msgspec.Struct, frozen=True, omit_defaults=True, tag="start"):
    """A trajectory waits for its first placement. `step` is the training step it is meant for."""

    t_s: float
    trajectory: int
    prompt_id: str
    group: int
    sample: int
    prompt_tok: int
    step: int
    oracle_total_tok: int | None = None


class ToolReturned(msgspec.Struct, frozen=True, omit_defaults=True, tag="tool"):
    """A tool came back; the next turn waits for a placement.

    `context_tok` includes the payload; `turn` counts finished turns from 1. `instance` is where the last turn ran.
    """

    t_s: float
    trajectory: int
    instance: int
    turn: int
    tool: str
    payload_tok: int
    status: ToolStatus
    latency_s: float
    context_tok: int


class TrajectoryEnd(msgspec.Struct, frozen=True, omit_defaults=True, tag="end"):
    """A trajectory is over. `total_tok` is prompt, generated and observed; it is censored unless completed."""

    t_s: float
    trajectory: int
    instance: int
    status: TrajectoryStatus
    generated_tok: int
    total_tok: int
    num_turns: int
    tool_s: float
    reward: float | None = None


class StepEnd(msgspec.Struct, frozen=True, omit_defaults=True, tag="step"):
    """A training step is over and its weights are in the engines: telemetry that a real run also has.

    `rollout_s` is the makespan of this step's rollout (barrier, colocated) or the time that the trainer waited for
    it to be complete (async); `train_s` the trainer's busy time; `step_s` the wall time since the last step end.
    """

    t_s: float
    step: int
    rollout_s: float
    train_s: float
    sync_s: float
    step_s: float
    trained_tok: int
    train_layout: TrainLayout
    train_dp: int
    max_staleness: int = 0


class PlannerTick(msgspec.Struct, frozen=True, tag="tick"):
    """A safe point: a plan or a move decided now starts here. Comes after `StepEnd` of the same step."""

    t_s: float
    step: int
    allocation: Allocation


class Placed(msgspec.Struct, frozen=True, omit_defaults=True, tag="placed"):
    """Acknowledges `Place`. `how` says what happened to the KV cache; `moved_tok` is 0 unless it changed engines."""

    t_s: float
    trajectory: int
    instance: int
    how: Literal["start", "stay", "transfer", "recompute"]
    moved_tok: int = 0


class AllocationChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="allocation"):
    """Acknowledges `ApplyPlan` and `Switch`, and reports instances that come up or go down later.

    `cause` is `plan`, `switch`, `up`, `down` or `rejected`; `reason` says why a command was rejected.
    """

    t_s: float
    allocation: Allocation
    cause: Literal["plan", "switch", "up", "down", "rejected"]
    reason: str = ""


Event = RunStart | TrajectoryStart | ToolReturned | TrajectoryEnd | StepEnd | PlannerTick | Placed | AllocationChanged
