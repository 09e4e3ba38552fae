"""Runs outside the measured range are told so, with the nearest measured point; runs inside are told nothing."""

from __future__ import annotations

import pytest

from libra.backends.sim.range import outside, runs
from libra.clusters import load_cluster
from libra.core.hardware import Cluster, Gpu, Model
from libra.core.plan import InstanceSpec, Plan, TrainLayout
from libra.models import load_model

A800 = load_cluster("a800x48")
H20 = Cluster("h20x64", 8, 8, Gpu("H20-SXM5-96GB", 148.0, 96.0, 4000.0, 450.0), "nic", 352.0)
QWEN_14B = load_model("qwen3-14b")
QWEN_235B = Model("qwen3-235b-a22b", 94, 4096, 64, 4, 128, 1536, 151936, 1 << 18, False, 128, 8)


def plan(rollout_tp: int = 4, **layout: int) -> Plan:
    return Plan(TrainLayout(**{"tp": 4, "dp": 4, **layout}), (InstanceSpec(0, rollout_tp),), (40960,))


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-8b", "qwen2.5-7b", "qwen3-14b", "qwen3-32b"])
def test_calibrated_runs_give_no_warning(name: str) -> None:
    plans = [plan(tp, tp=train_tp) for tp in (1, 2, 4) for train_tp in (1, 2, 4)]
    assert outside(A800, load_model(name), [*plans, plan(pp=4, vpp=2, dp=2)], 65_536) == ()


def test_an_unmeasured_gpu_is_compared_with_the_nearest_data_sheet() -> None:
    assert outside(H20, QWEN_14B, [], 40_960) == (
        "GPU H20-SXM5-96GB: not calibrated; nearest calibrated A100-SXM4-80GB; peak x0.474, memory bandwidth x1.96, "
        "link x1.5 extrapolated with A100's efficiencies",
    )


def test_a_model_beyond_the_measured_sizes() -> None:
    assert outside(A800, QWEN_235B, [], 40_960) == (
        "model qwen3-235b-a22b (235B): largest calibrated is 72.7B in serving (qwen2.5-72b, qwen_speed), x3.2 "
        "extrapolated; 64.8B in training (mpt-70b, llm_foundry), x3.6 extrapolated",
        "model qwen3-235b-a22b: no mixture of experts is among the calibrated runs; nearest is a kernel alone: "
        "fused MoE of Qwen3-30B-A3B, tensor parallel 1, 2, 4, 8, skewed routing, A100-SXM4-80GB, vLLM 0.14 "
        "kernels",
    )
    assert outside(A800, load_model("tiny"), [], 2_048) == (
        "model tiny (0.459M): smallest calibrated is 0.494B in serving (qwen2.5-0.5b, qwen_speed), x0.00093 "
        "extrapolated; 1.31B in training (mpt-1b, llm_foundry), x0.00035 extrapolated",
    )


def test_a_context_longer_than_the_measured_ones() -> None:
    assert outside(A800, QWEN_14B, [], 200_000) == (
        "context 200,000 tokens: longest calibrated 131,072 in serving (qwen_speed), x1.5 extrapolated; 65,536 in "
        "training (llm_foundry), x3.1 extrapolated",
    )
    (training_only,) = outside(A800, QWEN_14B, [], 131_072)
    assert training_only == (
        "context 131,072 tokens: longest calibrated 65,536 in training (llm_foundry), x2 extrapolated"
    )


@pytest.mark.parametrize(
    ("unusual", "warning"),
    [
        (plan(8),
         "TP-8 rollout: end-to-end serving calibrated up to TP-4 (qwen_speed), all-reduce kernels up to 8 GPUs "
         "(engine_all_reduce)"),
        (plan(tp=8), "TP-8 training: calibrated up to TP-4 (megatron), x2 extrapolated"),
        (plan(tp=1, pp=8, dp=1), "PP-8 training: calibrated up to PP-4 (megatron), x2 extrapolated"),
        (plan(tp=1, dp=8, ep=8),
         "EP-8 training: no calibrated training run uses expert parallelism; nearest llm_foundry with TP-1 PP-1 on 8 "
         "GPUs"),
        (plan(cp=2),
         "CP-2 training: no calibrated training run uses context parallelism; nearest megatron with TP-4 PP-1 on 8 "
         "GPUs"),
        (plan(dp=32), "training on 128 GPUs: calibrated up to 64 (llm_foundry), x2 extrapolated"),
    ],
)  # fmt: skip
def test_a_layout_outside_the_measured_ones(unusual: Plan, warning: str) -> None:
    assert outside(A800, QWEN_14B, [plan(), unusual, unusual], 40_960) == (warning,)


def test_hybrid_replicas_count_as_training_gpus() -> None:
    engines = tuple(InstanceSpec(number, 4, hybrid=number) for number in range(1, 5))
    elastic = Plan(TrainLayout(tp=4, dp=14), engines, (40960,))
    assert outside(A800, QWEN_14B, [elastic], 40_960) == (
        "training on 72 GPUs: calibrated up to 64 (llm_foundry), x1.1 extrapolated",
    )


def test_every_end_to_end_row_counts() -> None:
    tables = {name: sum(run.table == name for run in runs()) for name in ("qwen_speed", "gpustack", "llm_foundry")}
    assert tables == {"qwen_speed": 33, "gpustack": 10, "llm_foundry": 36}
