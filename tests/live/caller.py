"""A policy for verl's own agent loops: it calls a tool as Hermes does, reads what comes back and answers.

Only what `make_policy` asks of an environment is here; episodes are verl's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from libra.backends.live.tiny.policy import make_policy
from libra.backends.live.tiny.tokenizer import ASSISTANT, END, USER
from libra.workloads.environments.base import Demonstration, Segment

TOWNS = ("Belka", "Dorn", "Esta", "Falun", "Gorm", "Hela", "Istra", "Jora")
CHAT_END = "<|im_end|>"
"""What verl looks for in the tokenizer of every Qwen3."""
TOOL = '''"""A tool as verl documents it."""

import time

from verl.tools.function_tool import function_tool


@function_tool
def look(town: str) -> str:
    """Look up who leads a town.

    Args:
        town: The town's name.
    """
    time.sleep(0.05)
    return f"{town} is led by {town[::-1]}."
'''


def question(town: str) -> str:
    return f"Who leads {town}?"


class Caller:
    name = "caller"
    stop = ()

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        chance = np.random.default_rng([seed, 7])
        while True:
            town = str(chance.choice(TOWNS))
            call = json.dumps({"name": "look", "arguments": {"town": town}})
            yield Demonstration(
                prompt=question(town),
                segments=(
                    Segment(f"<tool_call>{call}</tool_call>", True),
                    Segment(f"\n{USER}{town} is led by {town[::-1]}.{ASSISTANT}", False),
                    Segment(town[::-1], True),
                ),
                is_right=True,
            )


def make_caller(folder: Path, steps: int) -> None:
    """A model's folder; its end token is named as verl expects it."""
    make_policy(folder, [Caller()], seed=0, steps=steps)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        file = folder / name
        file.write_text(file.read_text().replace(END, CHAT_END))
