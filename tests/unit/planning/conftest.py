"""Demands that the planning tests share: lognormal multi-turn lengths on the paper's cluster."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from libra.clusters import load_cluster
from libra.core.events import PipelineSpec, RunStart, StepEnd
from libra.core.hardware import Cluster, Model
from libra.core.plan import Allocation, InstanceStatus, Plan, TrainLayout
from libra.core.policy import Finished, Statistics
from libra.models import load_model


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return load_cluster("a800x48")


@pytest.fixture(scope="session")
def model() -> Model:
    return load_model("qwen3-14b")


def lengths(num: int, mean_tok: float, sigma: float, tool_s: float, seed: int) -> tuple[Finished, ...]:
    rng = np.random.default_rng(seed)
    out = []
    for total in rng.lognormal(np.log(mean_tok) - sigma**2 / 2, sigma, num):
        total = int(np.clip(total, 600, 40960))
        generated = max(1, int((total - 500) * 0.6))
        turns = max(1, generated // 350)
        out.append(Finished(500, generated, total - 500 - generated, turns, tool_s * (turns - 1)))
    return tuple(out)


@pytest.fixture(scope="session")
def statistics() -> Callable[..., Statistics]:
    """Builds `Statistics`; `equal_tok` makes every request the same."""

    def build(
        batch: int = 48,
        *,
        mean_tok: float = 9000.0,
        sigma: float = 1.2,
        tool_s: float = 2.0,
        kind: str = "barrier",
        staleness: int = 1,
        cap: int = 0,
        num: int | None = None,
        seed: int = 0,
        steps: tuple[StepEnd, ...] = (),
        num_steps: int = 500,
        equal_tok: int | None = None,
        context_tok: int = 40960,
    ) -> Statistics:
        pipeline = PipelineSpec(kind, staleness, cap)  # type: ignore[arg-type]
        run = RunStart(0.0, "a800x48", "qwen3-14b", pipeline, batch, 16, num_steps, context_tok)
        count = num or 8 * batch
        same = (Finished(500, (equal_tok or 0) - 500, 0, 1, 0.0),) * count
        return Statistics(run, same if equal_tok else lengths(count, mean_tok, sigma, tool_s, seed), steps)

    return build


def allocation_of(plan: Plan) -> Allocation:
    """What is there once `plan` is applied."""
    lent = set(plan.hybrid_training)
    return Allocation(
        train=plan.train,
        train_dp=plan.train.dp + len(lent),
        instances=tuple(
            InstanceStatus(i.id, i.tp, i.bucket, "training" if i.hybrid in lent else "up", i.hybrid)
            for i in plan.instances
        ),
        bounds_tok=plan.bounds_tok,
        hybrid_training=plan.hybrid_training,
        colocated=plan.colocated,
    )


@pytest.fixture(scope="session")
def applied() -> Callable[[Plan], Allocation]:
    return allocation_of


@pytest.fixture(scope="session")
def step_end() -> Callable[..., StepEnd]:
    def build(step: int, rollout_s: float, train_s: float, layout: TrainLayout, dp: int | None = None) -> StepEnd:
        wall_s = max(rollout_s, train_s) + 2.0
        return StepEnd(0.0, step, rollout_s, train_s, 2.0, wall_s, 400_000, layout, dp or layout.dp)

    return build
