"""Plays an episode to its end, as the tests of all environments do."""

from __future__ import annotations

import asyncio

from libra.workloads.environments.base import Demonstration, Environment, Observation, Task


def play(environment: Environment, task: Task, *completions: str) -> tuple[list[Observation | None], float]:
    """Observations and reward."""

    async def main() -> tuple[list[Observation | None], float]:
        episode = environment.start(task)
        seen = [await episode.step(completion) for completion in completions]
        reward = await episode.reward()
        await episode.close()
        await episode.close()
        return seen, reward

    return asyncio.run(main())


def ends_cut(environment: Environment, task: Task, *completions: str) -> bool:
    """`is_cut` of an episode whose last turn got no answer."""

    async def main() -> bool:
        episode = environment.start(task)
        seen = [await episode.step(completion) for completion in completions]
        assert seen[-1] is None
        await episode.close()
        return episode.is_cut

    return asyncio.run(main())


def turns(demonstration: Demonstration) -> list[str]:
    return [segment.text for segment in demonstration.segments if segment.by_policy]
