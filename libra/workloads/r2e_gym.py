"""R2E-Gym: software tasks with many turns, long payloads and slow tools."""

from __future__ import annotations

from typing import Any

from libra.core.registry import WorkloadSpec
from libra.workloads.sources import COMMON, TRACES, TURNS
from libra.workloads.synthetic import Sources, SyntheticOptions, SyntheticWorkload
from libra.workloads.turns import TurnOptions

NAME = "r2e-gym"


class R2EGymOptions(SyntheticOptions, TurnOptions):
    """Fields of both bases, with the defaults of this workload."""

    prompts: int = 2
    num_prompts: int = 8_101
    initial_tok: float = 2_500
    final_tok: float = 11_500
    mean_tok: float = 10_800
    sigma: float = 1.2
    prompt_tok: int = 600
    initial_reward: float = 0.15
    final_reward: float = 0.40
    turn_tok: int = 350
    payload_tok: int = 150
    payload_sigma: float = 1.3
    payload_cap_tok: int = 12_500
    fail_prob: float = 0.15
    tools: tuple[str, ...] = ("bash", "python")
    tool_s: float = 1.5
    tool_sigma: float = 1.0
    tool_cap_s: float = 120.0


SOURCES: Sources = COMMON | TURNS | {
    "prompts": ("derived", "763 token/s x 454.16 s = 346.5K tokens a step, 32 trajectories of 10.8K."),
    "num_prompts": ("reported", "The authors' released configuration: R2E-Gym V1, 8,101 tasks."),
    "initial_tok": ("reported", "The articles: the mean length drifts from 2.5K to 11.5K; the workload is not named."),
    "final_tok": ("reported", "The articles: the mean length drifts from 2.5K to 11.5K; the workload is not named."),
    "mean_tok": ("derived", "346.5K tokens a step over 32 trajectories (one reading of the reported throughput)."),
    "sigma": ("assumed", "The longest tenth then takes about half of the rollout time, as the articles report."),
    "prompt_tok": ("assumed", "Instructions and an issue text."),
    "turn_tok": ("assumed", "Above the 219 of coding-agent sessions: a model in training thinks aloud."),
    "payload_tok": ("derived", "Between 32 and 375, the medians in " + TRACES + "."),
    "payload_sigma": ("derived", "1.4 to 1.8 in " + TRACES + "; lower, since the payload is capped."),
    "payload_cap_tok": ("reported", "The articles' example of a large return: 12.5K tool tokens."),
    "fail_prob": ("derived", "0.17 of the returns in published SWE-agent demonstrations."),
    "tools": ("reported", "The articles on the paper: Bash, Python and the like; equal shares are assumed."),
    "tool_s": ("assumed", "No source gives it; studies sweep 1.5 to 5 s."),
    "tool_sigma": ("derived", "0.9 to 1.2 in coding-agent sessions, the larger with waits for a human in it."),
    "tool_cap_s": ("assumed", "Usual time-out of a sandboxed command."),
}  # fmt: skip


def build(options: R2EGymOptions, seed: int, max_context_tok: int) -> SyntheticWorkload:
    """For `WorkloadSpec`."""
    return SyntheticWorkload(NAME, options, SOURCES, seed, max_context_tok)


def environment(context: Any) -> Any:
    """For `WorkloadSpec`; simulated runs do without the import."""
    from libra.workloads.environments import r2e_gym

    return r2e_gym.build(context)


WORKLOAD = WorkloadSpec(
    name=NAME,
    summary="Software tasks: 32 trajectories a step, mean 2.5K to 11.5K tokens over 500 steps, slow tools",
    build=build,
    options=R2EGymOptions,
    environment=environment,
)
