"""Rows of the parquet tables that a run leaves behind: one flat struct per table, units in the names."""

from __future__ import annotations

import msgspec

from libra.core.events import PipelineSpec

SCHEMA_VERSION = 1
"""Raise it when a column changes its meaning; readers refuse other versions."""


class TrajectoryRow(msgspec.Struct, frozen=True):
    """One trajectory, written when it is trained (or when the run ends without training it: `trained_step` -1)."""

    trajectory: int
    prompt_id: str
    group: int
    sample: int
    meant_step: int
    trained_step: int
    status: str
    prompt_tok: int
    generated_tok: int
    observed_tok: int
    num_turns: int
    tool_s: float
    reward: float | None
    start_s: float
    """First placement."""
    end_s: float
    """End of the last turn."""
    first_instance: int
    last_instance: int
    first_bucket: int
    last_bucket: int
    num_moves: int
    moved_tok: int
    """Context tokens whose KV cache changed engines, by transfer or re-prefill, summed over moves."""
    prefilled_tok: int
    """Prompt, observed and recomputed tokens that an engine really prefilled."""
    cached_tok: int
    """Context tokens found in the prefix cache, summed over turns."""
    num_preemptions: int
    queue_s: float | None
    """Time from a placement to the start of its prefill, summed over turns; None where engines do not report it.

    Live engines count from their own queue on: what passes before it during a weight refresh is not in it.
    """
    version_start: int
    version_end: int
    version_trained: int


class VersionRow(msgspec.Struct, frozen=True):
    """Consecutive tokens of one turn that one policy version sampled, where a run's engines say so; `turn` from 0."""

    trajectory: int
    turn: int
    version: int
    num_tok: int


class StepRow(msgspec.Struct, frozen=True):
    """One training step and the time since the last step end. GPU seconds are sums over the pool's GPUs."""

    step: int
    start_s: float
    end_s: float
    rollout_s: float
    """Makespan of this step's rollout: first placement to last end of the trajectories trained in it."""
    rollout_90_s: float
    """From the same start to the time when 90 % of them (rounded up) were over."""
    train_s: float
    sync_s: float
    wait_rollout_s: float
    """Trainer idle, waiting for trajectories."""
    wait_train_s: float
    """Rollout pool idle as a whole, waiting for the trainer (barrier, colocated)."""
    num_trajectories: int
    prompt_tok: int
    generated_tok: int
    observed_tok: int
    max_total_tok: int
    train_gpus: int
    """GPUs that trained this step."""
    rollout_gpus: int
    """GPUs of the rollout pool at the step's end."""
    num_hybrid_training: int
    rollout_pool_gpu_s: float
    """GPU seconds that belonged to the rollout pool, used or not; likewise for training."""
    train_pool_gpu_s: float
    rollout_busy_gpu_s: float
    """GPU seconds in which an instance had work, until this step's end."""
    train_busy_gpu_s: float
    moving_gpu_s: float
    """GPU seconds lost to role switches, restarts and cold starts."""
    num_preemptions: int
    max_staleness: int
    mean_staleness: float


class DecisionRow(msgspec.Struct, frozen=True):
    """One placement and the evidence behind it (`Why`)."""

    t_s: float
    trajectory: int
    turn: int
    """Finished turns: 0 at the start."""
    from_instance: int
    """-1 at the start."""
    to_instance: int
    bucket: int
    context_tok: int
    level: str
    mean_tok: float
    p90_tok: float
    evidence: float


class EngineRow(msgspec.Struct, frozen=True):
    """What a live engine said of itself at one moment. Sums count from the engine's start, so a new one begins at 0."""

    t_s: float
    instance: int
    num_running: int
    num_waiting: int
    kv_cache_share: float
    """Of the KV cache's blocks, those in use: 0 to 1."""
    prefix_query_tok: int
    """Prompt tokens looked up in the prefix cache; `prefix_hit_tok` were found."""
    prefix_hit_tok: int
    num_preemptions: int
    num_queued: int
    """Requests that ended; they have waited `queue_s` together before they were first scheduled."""
    queue_s: float


class EventCounts(msgspec.Struct, frozen=True):
    """How many events and commands a run recorded, for integrity checks on reading."""

    num_events: int
    num_commands: int


class Bounds(msgspec.Struct, frozen=True):
    """Bucket bounds in force from `t_s` on; `bounds_tok[b]` is the largest total length of bucket b."""

    t_s: float
    bounds_tok: tuple[int, ...]


class Facts(msgspec.Struct, frozen=True):
    """What a run really had: GPUs of the cluster, pipeline after the policy's own wish, bounds over time."""

    num_gpus: int
    pipeline: PipelineSpec
    bounds: tuple[Bounds, ...] = ()
