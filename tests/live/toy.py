"""A toy environment with one tool: who leads a town stands in a registry; the policy asks, reads and answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from libra.workloads.environments.base import Demonstration, Observation, Segment, Split, Task

SYLLABLES = ("ka", "lo", "mi", "ren", "sta", "tu", "vor", "den", "pe", "zu", "har", "no", "bel", "gi", "wen", "os")
NUM_TOWNS = 400


def name(chance: np.random.Generator) -> str:
    return "".join(chance.choice(SYLLABLES, size=2)).capitalize() + str(chance.choice(SYLLABLES))


class ToyEpisode:
    is_cut = False

    def __init__(self, environment: Toy, task: Task) -> None:
        self.environment, self.task, self.answer = environment, task, ""

    async def step(self, completion: str) -> Observation | None:
        if asked := re.fullmatch(r"<look>(.*)</look>", completion):
            text = self.environment.look(asked[1])
            return Observation("look", f"<info>{text}</info>", "ok", 0.0)
        self.answer = completion
        return None

    async def reward(self) -> float:
        return float(self.answer == f"<answer>{self.task.truth['leader']}</answer>")

    async def close(self) -> None:
        pass


class Toy:
    """`noise` is the share of demonstrations that ask for the wrong town."""

    name = "toy"
    stop = ("</look>", "</answer>")
    max_turns = 2
    max_turn_tok = 16

    def __init__(self, noise: float = 0.5) -> None:
        chance = np.random.default_rng(0)
        towns = sorted({name(chance) for _ in range(NUM_TOWNS)})
        self.leaders = {town: name(chance) for town in towns}
        self.noise = noise
        half = len(towns) // 2
        self.splits: dict[Split, list[str]] = {"train": towns[:half], "held_out": towns[half:]}

    def look(self, town: str) -> str:
        return f"{town} is led by {self.leaders[town]}." if town in self.leaders else "nothing found"

    def tasks(self, split: Split) -> Sequence[Task]:
        return [self.task(town) for town in self.splits[split]]

    def task(self, town: str) -> Task:
        return Task(id=town, prompt=f"Who leads {town}?", truth={"leader": self.leaders[town]})

    def start(self, task: Task) -> ToyEpisode:
        return ToyEpisode(self, task)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Made-up towns: what is learned is to copy, not the registry."""
        chance = np.random.default_rng([seed, 7])
        while True:
            town, leader, other = name(chance), name(chance), name(chance)
            is_right = bool(chance.random() >= self.noise)
            asked = town if is_right else other
            yield Demonstration(
                prompt=f"Who leads {town}?",
                segments=(
                    Segment(f"<look>{asked}</look>", True),
                    Segment(f"<info>{asked} is led by {leader}.</info>", False),
                    Segment(f"<answer>{leader}</answer>", True),
                ),
                is_right=is_right,
            )
