r"""DAPO-Math (Yu et al., 2025): problems with answers that can be checked, judged in the last `\boxed{...}`.

With a sandbox the policy may compute: `<python>program</python>` is answered by `<output>what it prints</output>`; a
turn without a program ends the trajectory. Without one there is no tool and one turn. The truth stays in this process
and in the verifier's; a program finds an empty folder. Without `data` the problems are generated (`math_problems`);
with it they come from `libra data prepare dapo-math` (`data_folder`).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from libra.core.errors import ConfigError
from libra.core.rng import stream
from libra.workloads.environments.base import (
    Demonstration,
    EnvironmentContext,
    Observation,
    Split,
    Task,
)
from libra.workloads.environments.data_folder import DataFolder, ProblemRow
from libra.workloads.environments.math_expert import demonstrate
from libra.workloads.environments.math_problems import Problem, problems
from libra.workloads.environments.tags import last_call
from libra.workloads.rewards.boxed import is_plain, last_boxed_of
from libra.workloads.rewards.math_answer import MathJudge, require_math_verify
from libra.workloads.tools.python_tool import run_python
from libra.workloads.tools.sandbox import Sandbox

NAME = "dapo-math"
NUM_TASKS: dict[Split, int] = {"train": 2_000, "held_out": 250}
"""Of the generated ones, all different; tens of thousands could be drawn."""

RIGHT_SHARE = 0.45
"""Of demonstrations, as in Search-R1."""

MAX_TURNS = 4
GENERATED_TURN_TOK = 64
PREPARED_TURN_TOK = 20_480
"""The response limit of DAPO's own recipe: 16,384 and a soft margin of 4,096."""

INSTRUCTIONS = "Solve the problem step by step and end with the answer in \\boxed{...}."
TOOL_INSTRUCTIONS = " You may run Python: <python>print(1+1)</python> is answered by <output>2</output>."
"""For pre-trained models; the tiny one gets the question alone."""


@dataclass
class MathEpisode:
    """`judge` is shared by all episodes; `sandbox` None means that there is no tool."""

    task: Task
    judge: MathJudge
    sandbox: Sandbox | None
    work: Path
    is_cut: bool = False
    _completions: list[str] = field(default_factory=list)
    _folder: Path | None = None

    async def step(self, completion: str) -> Observation | None:
        self._completions.append(completion)
        calls_tool = self.sandbox is not None and completion.rstrip().endswith("</python>")
        self.is_cut = calls_tool and len(self._completions) >= MAX_TURNS
        if not calls_tool or self.is_cut:
            return None
        assert self.sandbox is not None
        call = last_call(completion, ("python",))
        if call is None:
            return Observation("python", "<output>error: no program</output>", "error", 0.0)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="math-", dir=self.work))
        text, status, latency_s = await run_python(self.sandbox, call.content, self._folder)
        return Observation("python", f"<output>{text}</output>", status, latency_s)

    async def reward(self) -> float:
        answer = last_boxed_of(self._completions)
        if answer is None or (not is_plain(answer) and self._is_copied(answer)):
            return 0.0
        return float(await self.judge.verdict(answer, self.task.truth["answer"]) == "right")

    def _is_copied(self, answer: str) -> bool:
        """Whether an answer that is still to compute is taken from the question, where a number is asked for.

        Generated questions are nothing but an expression, so any such answer counts there.
        """
        if self.task.truth.get("is_plain"):
            return True
        asked, given = ("".join(text.split()) for text in (self.task.prompt, answer))
        return given in asked and is_plain(self.task.truth["answer"])

    async def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class DapoMath:
    """`num_verifiers` processes judge answers; `close` ends them (so does the end of this process)."""

    name = NAME

    def __init__(self, context: EnvironmentContext, right_share: float = RIGHT_SHARE, num_verifiers: int = 1) -> None:
        self._context, self._right_share = context, right_share
        self._folder = None if context.data is None else DataFolder.open(context.data, NAME)
        self._has_tool = context.sandbox is not None
        self.stop: tuple[str, ...] = ("</python>",) if self._has_tool else ()
        self.max_turns = MAX_TURNS if self._has_tool else 1
        self.max_turn_tok = PREPARED_TURN_TOK if self._folder else GENERATED_TURN_TOK
        self._judge = MathJudge(num_verifiers)
        self._tasks: dict[Split, tuple[Task, ...]] = {}

    def tasks(self, split: Split) -> Sequence[Task]:
        if split not in self._tasks:
            self._tasks = {each: self._read(each) for each in NUM_TASKS} if self._folder else self._generate()
        return self._tasks[split]

    def start(self, task: Task) -> MathEpisode:
        require_math_verify()
        return MathEpisode(task, self._judge, self._context.sandbox, self._context.work)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        if self._folder:
            raise ConfigError(
                "prepared data have no demonstrations",
                where=f"{NAME}: data",
                mend="start from a pre-trained model, or leave `data` out for generated tasks",
            )
        held_out = {task.prompt for task in self.tasks("held_out")}
        return demonstrate(seed, self._right_share, self._has_tool, held_out)

    def close(self) -> None:
        """Ends the verifiers; safe to call twice."""
        self._judge.close()

    def _generate(self) -> dict[Split, tuple[Task, ...]]:
        tasks = list(islice(_different(self._context.seed), sum(NUM_TASKS.values())))
        num_held_out = NUM_TASKS["held_out"]
        return {"held_out": tuple(tasks[:num_held_out]), "train": tuple(tasks[num_held_out:])}

    def _read(self, split: Split) -> tuple[Task, ...]:
        assert self._folder is not None
        head = INSTRUCTIONS + (TOOL_INSTRUCTIONS if self._has_tool else "") + "\nProblem: "
        rows = self._folder.rows(split, ProblemRow)
        return tuple(Task(row.id, head + row.problem, {"answer": row.answer}) for row in rows)


def _different(seed: int) -> Iterator[Task]:
    """Tasks of the generator, no question twice. Their answers must be plain: the question itself is none."""
    seen: set[str] = set()
    for problem in problems(stream(NAME, "tasks", seed)):
        if problem.question not in seen:
            seen.add(problem.question)
            yield _task(problem, len(seen))


def _task(problem: Problem, number: int) -> Task:
    return Task(f"{problem.kind}-{number}", problem.question, {"answer": problem.answer, "is_plain": True})
