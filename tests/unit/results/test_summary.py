"""Every metric against a run of four trajectories and two steps that is small enough to do by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from libra.core.events import PipelineSpec
from libra.results.glossary import METRICS
from libra.results.schemas import Bounds, DecisionRow, Facts, StepRow, TrajectoryRow
from libra.results.summary import Summary, steady_window, summarise
from libra.results.tables import table_of


def step(number: int, start_s: float, end_s: float, **changes: Any) -> StepRow:
    values: dict[str, Any] = {
        "step": number, "start_s": start_s, "end_s": end_s, "rollout_s": 8.0, "rollout_90_s": 6.0, "train_s": 2.0,
        "sync_s": 0.5, "wait_rollout_s": 0.0, "wait_train_s": 0.0, "num_trajectories": 2, "prompt_tok": 0,
        "generated_tok": 0, "observed_tok": 0, "max_total_tok": 0, "train_gpus": 4, "rollout_gpus": 4,
        "num_hybrid_training": 0, "rollout_busy_gpu_s": 30.0, "train_busy_gpu_s": 8.0, "moving_gpu_s": 4.0,
        "num_preemptions": 0, "max_staleness": 1, "mean_staleness": 0.5, "rollout_pool_gpu_s": 4 * (end_s - start_s),
        "train_pool_gpu_s": 4 * (end_s - start_s),
    }  # fmt: skip
    return StepRow(**{**values, **changes})


def trajectory(number: int, trained_step: int, **changes: Any) -> TrajectoryRow:
    values: dict[str, Any] = {
        "trajectory": number, "prompt_id": "p", "group": 0, "sample": number, "meant_step": max(0, trained_step),
        "trained_step": trained_step, "status": "completed", "prompt_tok": 100, "generated_tok": 300,
        "observed_tok": 100, "num_turns": 2, "tool_s": 1.0, "reward": None, "start_s": 0.0, "end_s": 5.0,
        "first_instance": 0, "last_instance": 0, "first_bucket": 0, "last_bucket": 0, "num_moves": 0, "moved_tok": 0,
        "prefilled_tok": 200, "cached_tok": 300, "num_preemptions": 0, "queue_s": 0.0, "version_start": 0,
        "version_end": 0, "version_trained": 0,
    }  # fmt: skip
    return TrajectoryRow(**{**values, **changes})


def decision(number: int, bucket: int, t_s: float = 1.0, level: str = "none") -> DecisionRow:
    return DecisionRow(t_s, number, 0, -1, 0, bucket, 100, level, 0.0, 0.0, 0.0)


def found(
    steps: list[StepRow],
    rows: list[TrajectoryRow],
    decisions: list[DecisionRow],
    bounds: tuple[Bounds, ...] = (Bounds(0.0, (1000, 8000)),),
    kind: Any = "barrier",
) -> Summary:
    tables = table_of(steps, StepRow), table_of(rows, TrajectoryRow), table_of(decisions, DecisionRow)
    return summarise(*tables, Facts(8, PipelineSpec(kind=kind), bounds))


STEPS = [step(0, 0.0, 10.0), step(1, 10.0, 20.0, rollout_s=4.0, rollout_90_s=4.0, max_staleness=3, mean_staleness=1.0)]
ROWS = [
    trajectory(0, 0),
    trajectory(1, 0, status="truncated", generated_tok=1800, end_s=15.0, moved_tok=4000, num_moves=2),
    trajectory(2, 1, num_preemptions=2),
    trajectory(3, -1, end_s=15.0),
]
DECISIONS = [
    decision(0, 1), decision(1, 0), decision(2, 0, level="prefix"), decision(3, 0, level="shared"), decision(0, 0),
    decision(2, 1), decision(2, 0),
]  # fmt: skip


def test_a_small_run_by_hand() -> None:
    metrics = found(STEPS, ROWS, DECISIONS).metrics
    expected = {
        "generated_tok_per_s": 2700 / 20,  # 300 + 1800 + 300 + 300
        "trajectory_tok_per_s": 3500 / 20,
        "trained_tok_per_s": 3000 / 20,
        "trained_tok_per_s_per_gpu": 3000 / 20 / 8,
        "trajectory_tok_per_s_whole_run": 3500 / 20,
        "makespan_s": 20.0,
        "steps": 2.0,
        "step_s": 10.0,
        "rollout_s": 6.0,
        "train_s": 2.0,
        "sync_s": 0.5,
        "gpu_hours": 160 / 3600,
        "tail_share_top10": 15 / 40,  # the longest one of four
        "tail_share_makespan": (2 / 8 + 0) / 2,
        "mean_length_tok": 3500 / 4,
        "mean_length_first_decile_tok": 2500 / 2,
        "mean_length_last_decile_tok": 500.0,
        "bubble_share_rollout": 1 - 60 / 80,
        "bubble_share_train": 1 - 16 / 80,
        "bubble_share": 1 - 76 / 160,
        "transition_share": 8 / 160,
        "prefix_hit_share": 1200 / 2000,
        "migrated_token_ratio": 4000 / 3500,
        "moves_per_trajectory": 0.5,
        "preemptions_per_trajectory": 0.5,
        "prediction_coverage": 2 / 7,
        "prefix_coverage": 1 / 7,
        "staleness_mean": 0.75,
        "staleness_max": 3.0,
        "censored_share": 0.25,
        "untrained_share": 0.25,
        # Lengths 500, 2000+, 500, 500: buckets 0, 1 (truncated in the last bucket: known), 0, 0.
        "routing_accuracy_first": 2 / 4,  # 1, 0, 0, 0
        "routing_accuracy": 2 / 4,  # 0, 0, 1, 0: trajectories 0 and 2 change bucket
        "routing_accuracy_final": 3 / 4,  # 0, 0, 0, 0
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert list(metrics) == [name for name in METRICS if name in metrics]


def test_every_metric_is_there_or_absent_with_a_reason() -> None:
    for summary in (
        found(STEPS, ROWS, DECISIONS),
        found(STEPS, [], []),
        found([], ROWS, DECISIONS),
        found(STEPS, ROWS, [], bounds=()),
        found(STEPS, ROWS, DECISIONS, kind="colocated"),
    ):
        assert set(summary.metrics) | set(summary.absent) == set(METRICS)
        assert not set(summary.metrics) & set(summary.absent)
        assert all(math.isfinite(value) for value in summary.metrics.values())
        assert all(summary.absent.values())


def test_colocated_pools_have_no_bubble_of_their_own() -> None:
    summary = found(STEPS, ROWS, DECISIONS, kind="colocated")
    assert "share the GPUs" in summary.absent["bubble_share_rollout"]
    assert summary.metrics["bubble_share"] == pytest.approx(1 - 76 / 160)


def test_one_bucket_leaves_nothing_to_route() -> None:
    summary = found(STEPS, ROWS, DECISIONS, bounds=(Bounds(0.0, (8000,)),))
    assert summary.absent["routing_accuracy"] == "the layout never had two buckets"


def test_decisions_are_judged_by_the_bounds_in_force() -> None:
    bounds = (Bounds(0.0, (8000,)), Bounds(5.0, (100, 8000)), Bounds(9.0, (1000, 8000)))
    decisions = [decision(0, 0, 1.0), decision(0, 1, 6.0), decision(2, 0, 9.0), decision(2, 0, 10.0)]
    summary = found(STEPS, ROWS, decisions, bounds)
    assert summary.metrics["routing_accuracy_first"] == 1.0


def test_lengths_that_nobody_knows_are_not_judged() -> None:
    rows = [trajectory(0, 0, status="truncated"), trajectory(1, 0)]
    summary = found(STEPS, rows, [decision(0, 1), decision(1, 0), decision(99, 0)])
    assert summary.metrics["routing_accuracy"] == 1.0
    only_unknown = found(STEPS, rows, [decision(0, 1)])
    assert only_unknown.absent["routing_accuracy"] == "no decision can be judged"


def test_longer_than_every_bound_is_the_last_bucket() -> None:
    rows = [trajectory(0, 0, generated_tok=100_000)]
    assert found(STEPS, rows, [decision(0, 1)]).metrics["routing_accuracy"] == 1.0


@pytest.mark.parametrize(
    ("num_steps", "window"), [(1, (0, 1)), (3, (0, 3)), (4, (1, 3)), (7, (1, 6)), (8, (2, 7)), (100, (2, 99))]
)
def test_the_steady_state(num_steps: int, window: tuple[int, int]) -> None:
    assert steady_window(num_steps) == window


def test_steady_throughput_leaves_filling_and_draining_out() -> None:
    steps = [step(k, 10.0 * k, 10.0 * (k + 1)) for k in range(5)]
    rows = [trajectory(k, k, generated_tok=1000 * (k + 1), end_s=10.0 * k) for k in range(5)]
    rows.append(trajectory(9, -1, generated_tok=7, end_s=5.0))
    metrics = found(steps, rows, []).metrics
    assert metrics["generated_tok_per_s"] == pytest.approx((2000 + 3000 + 4000) / 30)
    assert metrics["generated_tok_per_s_whole_run"] == pytest.approx(15007 / 50)


def test_the_glossary_is_whole() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name and metric.unit and metric.definition.endswith("."), name


def test_the_rate_of_rollout_alone_leaves_training_out() -> None:
    steps = [step(0, 0.0, 10.0, generated_tok=600), step(1, 10.0, 30.0, generated_tok=600, rollout_s=4.0)]
    metrics = found(steps, ROWS, DECISIONS).metrics
    assert metrics["rollout_generated_tok_per_s"] == 1200 / 12
    assert metrics["rollout_generated_tok_per_s_per_gpu"] == 1200 / 48
    assert "overlap" in found(steps, ROWS, DECISIONS, kind="async").absent["rollout_generated_tok_per_s"]
