"""Search-R1: questions answered with a search tool in a few short turns."""

from __future__ import annotations

from typing import Any

from libra.core.registry import WorkloadSpec
from libra.workloads.sources import COMMON, TURNS
from libra.workloads.synthetic import Sources, SyntheticOptions, SyntheticWorkload
from libra.workloads.turns import TurnOptions

NAME = "search-r1"


class SearchR1Options(SyntheticOptions, TurnOptions):
    """Fields of both bases, with the defaults of this workload."""

    prompts: int = 8
    num_prompts: int = 169_615
    initial_tok: float = 2_000
    final_tok: float = 3_200
    mean_tok: float = 2_700
    sigma: float = 0.8
    prompt_tok: int = 200
    initial_reward: float = 0.25
    final_reward: float = 0.45
    turn_tok: int = 250
    payload_tok: int = 600
    payload_sigma: float = 0.4
    payload_cap_tok: int = 4_096
    fail_prob: float = 0.05
    tools: tuple[str, ...] = ("search",)
    tool_s: float = 0.8
    tool_sigma: float = 0.6
    tool_cap_s: float = 15.0


SOURCES: Sources = COMMON | TURNS | {
    "prompts": ("derived", "2,700 token/s x 17.9 h / 500 steps = 348K tokens a step, 128 trajectories of 2.7K."),
    "num_prompts": ("reported", "The authors' released configuration: NQ and HotpotQA, 169,615 rows."),
    "initial_tok": ("assumed", "Chosen around the derived time mean."),
    "final_tok": ("assumed", "Chosen around the derived time mean."),
    "mean_tok": ("derived", "348K tokens a step over 128 trajectories (one reading of the reported throughput)."),
    "sigma": ("assumed", "A narrower tail than R2E-Gym: turns are few and payloads alike."),
    "prompt_tok": ("assumed", "Instructions and a one-sentence question."),
    "turn_tok": ("assumed", "A thought and a query; the released configuration allows 1,024 a turn."),
    "payload_tok": ("assumed", "A few passages of text; the released configuration returns the top 5 results."),
    "payload_sigma": ("assumed", "Passages of one index are alike in length."),
    "payload_cap_tok": ("assumed", "Far beyond the largest draws: no result is cut by it."),
    "fail_prob": ("assumed", "Empty results and network errors; 3 % of the replies fail in tau-bench airline."),
    "tools": ("reported", "The authors' released configuration has one search tool."),
    "tool_s": ("assumed", "A retrieval service with a queue; the paper names neither retriever nor time."),
    "tool_sigma": ("assumed", "One service with little spread; coding-agent tools have 0.9 to 1.2."),
    "tool_cap_s": ("assumed", "Usual time-out of a retrieval call."),
}  # fmt: skip


def build(options: SearchR1Options, seed: int, max_context_tok: int) -> SyntheticWorkload:
    """For `WorkloadSpec`."""
    return SyntheticWorkload(NAME, options, SOURCES, seed, max_context_tok)


def environment(context: Any) -> Any:
    """For `WorkloadSpec`; imported late, as simulations need none of it."""
    from libra.workloads.environments.search_r1 import SearchR1

    return SearchR1(context)


def serving(context: Any) -> Any:
    """For `WorkloadSpec`: a search server on the environment's corpus."""
    from libra.workloads.environments import search_r1

    return search_r1.serving(context)


WORKLOAD = WorkloadSpec(
    name=NAME,
    summary="Searches: 128 trajectories a step, mean 2.0K to 3.2K tokens over 500 steps, short tool calls",
    build=build,
    options=SearchR1Options,
    environment=environment,
    serving=serving,
)
