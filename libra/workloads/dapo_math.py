"""DAPO-Math-17K: one long chain of thought per sample, no tool."""

from __future__ import annotations

from typing import Any

from libra.core.registry import WorkloadSpec
from libra.workloads.sources import COMMON
from libra.workloads.synthetic import Sources, SyntheticOptions, SyntheticWorkload

NAME = "dapo-math"


class DapoMathOptions(SyntheticOptions):
    """Fields of the base, with the defaults of this workload."""

    prompts: int = 3
    num_prompts: int = 17_000
    initial_tok: float = 2_500
    final_tok: float = 11_500
    mean_tok: float = 7_000
    sigma: float = 1.0
    prompt_tok: int = 150
    initial_reward: float = 0.20
    final_reward: float = 0.50


SOURCES: Sources = COMMON | {
    "prompts": ("derived", "3 x 16 trajectories of 7.0K make 336K tokens a step, if all three runs saw equally many."),
    "num_prompts": ("reported", "The name of the data set, DAPO-Math-17K."),
    "initial_tok": ("reported", "The articles: the mean length drifts from 2.5K to 11.5K; the workload is not named."),
    "final_tok": ("reported", "The articles: the mean length drifts from 2.5K to 11.5K; the workload is not named."),
    "mean_tok": ("assumed", "A linear drift; the articles do not give its course."),
    "sigma": ("assumed", "Between the two workloads with tools."),
    "prompt_tok": ("assumed", "Instructions and a competition problem."),
}  # fmt: skip


def build(options: DapoMathOptions, seed: int, max_context_tok: int) -> SyntheticWorkload:
    """For `WorkloadSpec`."""
    return SyntheticWorkload(NAME, options, SOURCES, seed, max_context_tok)


def environment(context: Any) -> Any:
    """For `WorkloadSpec`; imported late, as simulations need none of it."""
    from libra.workloads.environments.dapo_math import DapoMath

    return DapoMath(context)


WORKLOAD = WorkloadSpec(
    name=NAME,
    summary="Competition maths: 48 trajectories a step, mean 2.5K to 11.5K tokens over 500 steps, no tool",
    build=build,
    options=DapoMathOptions,
    environment=environment,
)
