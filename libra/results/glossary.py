"""Every metric by its full name: unit, definition, direction. Printed wherever a number is: "throughput" in this
field may mean four things. `summary.py` computes exactly these.
"""

from __future__ import annotations

from dataclasses import dataclass

WARMUP_STEPS = 2
"""Steps before the steady state. A barrier pipeline fills in one step and an asynchronous one in about two; every
pipeline skips the same number, so that paired policies are compared on the same trajectories."""

WARMUP_SHARE = 0.25
"""At most this share of a run is warm-up: short runs skip fewer steps."""

MIN_STEPS_TO_TRIM = 4
"""Shorter runs are taken whole: trimming would leave too little."""

STEADY_STATE = (
    f"Steady state: without the first {WARMUP_STEPS} steps (at most a quarter of the run: the pipeline fills) and "
    f"without the last step (no rollout runs beside it: the pipeline drains); runs of fewer than {MIN_STEPS_TO_TRIM} "
    "steps are taken whole. A trajectory belongs to the step that trains it (behind a barrier one step after "
    "the one that rolls it out); one that is never trained belongs to the time in which it ended."
)


@dataclass(frozen=True)
class Metric:
    """One column of the results. `higher_is_better` None: neither direction is good as such."""

    name: str
    unit: str
    definition: str
    higher_is_better: bool | None = None


_NUMERATORS = {
    "generated": "tokens sampled by the model",
    "trajectory": "prompt, generated and observed tokens of trajectories",
    "trained": "tokens of trajectories that a training step used (prompt, generated and observed)",
}


def _throughputs() -> list[Metric]:
    rates = [
        Metric(f"{name}_tok_per_s", "token/s", f"{text[0].upper()}{text[1:]}, per second of the steady state.", True)
        for name, text in _NUMERATORS.items()
    ]
    per_gpu = [
        Metric(f"{rate.name}_per_gpu", "token/s", f"{rate.name} over all GPUs of the cluster, used or not.", True)
        for rate in rates
    ]
    whole = [
        Metric(f"{name}_tok_per_s_whole_run", "token/s", f"{text[0].upper()}{text[1:]}, per second of the run.", True)
        for name, text in _NUMERATORS.items()
    ]
    rollout = [
        Metric(
            "rollout_generated_tok_per_s",
            "token/s",
            "Tokens sampled by the model over the rollout makespans of the steps that trained them: rollout alone, "
            "training left out. Not defined for asynchronous pipelines, whose makespans overlap.",
            True,
        ),
        Metric(
            "rollout_generated_tok_per_s_per_gpu",
            "token/s",
            "rollout_generated_tok_per_s over the GPUs of the rollout pool.",
            True,
        ),
    ]
    return [*rates, *per_gpu, *whole, *rollout]


_TIMES = [
    Metric("makespan_s", "s", "From the run's start to the end of its last step.", False),
    Metric("steps", "step", "Training steps done."),
    Metric("step_s", "s", "Time from one step's end to the next, mean over the steady state.", False),
    Metric(
        "rollout_s", "s", "First placement to last end of a step's trajectories, mean over the steady state.", False
    ),
    Metric("train_s", "s", "Busy time of the trainer in a step, mean over the steady state.", False),
    Metric("sync_s", "s", "Time to bring new weights to the engines, mean over the steady state.", False),
    Metric("gpu_hours", "GPU h", "GPUs of the cluster times makespan.", False),
]

_TAILS = [
    Metric(
        "tail_share_top10",
        "share",
        "Share of the summed rollout durations (first placement to end) that the longest 10 % of trajectories hold.",
        False,
    ),
    Metric(
        "tail_share_makespan",
        "share",
        "Share of a step's rollout makespan that comes after 90 % of its trajectories were over, mean over all steps.",
        False,
    ),
    Metric("mean_length_tok", "token", "Prompt, generated and observed tokens of a trajectory, mean."),
    Metric("mean_length_first_decile_tok", "token", "mean_length_tok of the first tenth of the steps (at least one)."),
    Metric("mean_length_last_decile_tok", "token", "mean_length_tok of the last tenth of the steps (at least one)."),
]

_BUBBLES = [
    Metric("bubble_share_rollout", "share", "GPU time of the rollout pool without work, of all its GPU time.", False),
    Metric("bubble_share_train", "share", "GPU time of the training pool without work, of all its GPU time.", False),
    Metric(
        "bubble_share", "share", "GPU time without rollout or training work, of all GPU time of the cluster.", False
    ),
    Metric(
        "transition_share",
        "share",
        "GPU time lost to role switches, restarts and cold starts, of all GPU time of the cluster.",
        False,
    ),
]

_CACHE = [
    Metric("prefix_hit_share", "share", "Tokens found in the prefix cache, of those found or prefilled.", True),
    Metric(
        "migrated_token_ratio",
        "share",
        "Context tokens whose KV cache changed engines (moved or recomputed) over all tokens; may pass 1.",
        False,
    ),
    Metric("moves_per_trajectory", "1", "Times that a trajectory changed engines, mean.", False),
    Metric("preemptions_per_trajectory", "1", "Times that an engine evicted a running turn, per trajectory.", False),
]

_ROUTING = [
    Metric(
        "routing_accuracy",
        "share",
        "Share of one-shot bucket decisions that equal the realised bucket: of each trajectory the bucket that its "
        "first change of bucket led to, or its first bucket when it never changed. The realised bucket is that of the "
        "true total length under the bounds in force at the decision. Trajectories whose length is censored below the "
        "last bucket do not count.",
        True,
    ),
    Metric("routing_accuracy_first", "share", "As routing_accuracy, for the bucket of the first placement.", True),
    Metric("routing_accuracy_final", "share", "As routing_accuracy, for the bucket of the last placement.", True),
    Metric("prediction_coverage", "share", "Placements that had an estimate of the length behind them.", True),
    Metric("prefix_coverage", "share", "Placements whose estimate came from the trajectory's own prefix.", True),
]

_STALENESS = [
    Metric("staleness_mean", "version", "Age of trained trajectories in policy versions, mean.", False),
    Metric("staleness_max", "version", "Largest age of a trained trajectory in policy versions.", False),
    Metric("censored_share", "share", "Trajectories that ended truncated or aborted."),
    Metric("untrained_share", "share", "Trajectories that ended and that no step trained.", False),
]

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_throughputs(), *_TIMES, *_TAILS, *_BUBBLES, *_CACHE, *_ROUTING, *_STALENESS)
}
"""All metrics by name, in the order in which they are printed."""
