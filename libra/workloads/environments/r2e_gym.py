"""R2E-Gym, live: mend a bug in a small repository with a shell and an editor; hidden tests decide.

A turn ends with a call: `<bash>COMMAND</bash>`, `<edit>FILE:LINE: new text</edit>`, or `<done></done>` for the end. A
tool answers with `<output>...</output>`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from libra.core.errors import ConfigError
from libra.core.records import ToolStatus
from libra.workloads.environments import r2e_data, r2e_repos
from libra.workloads.environments.base import Demonstration, EnvironmentContext, Observation, Split, Task
from libra.workloads.environments.r2e_expert import SHARE_RIGHT, demonstrations
from libra.workloads.environments.r2e_grading import Truth, agent_sources, passes, write_files
from libra.workloads.environments.r2e_text import observation_text, shown
from libra.workloads.tools.edit import ToolError, edit_line
from libra.workloads.tools.sandbox import Limits, Sandbox

TOOLS = ("bash", "edit", "done")
CALL = re.compile(rf"<({'|'.join(TOOLS)})>(.*?)</\1>", re.DOTALL)
TAG = re.compile(r"<(\w+)")
LIMITS = Limits(wall_s=4.0, cpu_s=2, memory_mb=256, output_bytes=4_096)
"""Right calls take 20 ms, ten times that beside engines on two cores; one that sleeps holds up its batch."""


def build(context: EnvironmentContext) -> R2EGym:
    """For `WorkloadSpec`. Raises `ConfigError` without a sandbox, or for data that cannot be read."""
    if context.sandbox is None:
        raise ConfigError(
            "no sandbox", where="environment of r2e-gym", mend="hand over `libra.backends.live.sandbox.open_sandbox()`"
        )
    return R2EGym(context.sandbox, context.work, context.seed, context.data)


class R2EGym:
    """See `Environment`. `share_right`: of the demonstrations, about this share ends with a mended repository."""

    name = "r2e-gym"
    stop = tuple(f"</{tool}>" for tool in TOOLS)
    max_turns = 6
    max_turn_tok = 48

    def __init__(
        self, sandbox: Sandbox, work: Path, seed: int, data: Path | None = None, share_right: float = SHARE_RIGHT
    ) -> None:
        self.sandbox, self.work, self.seed, self.data, self.share_right = sandbox, work, seed, data, share_right
        self.graded: dict[tuple[str, str], bool] = {}
        """By task and sources: samples of a group often end alike, and a grading costs more than a turn."""

    def tasks(self, split: Split) -> Sequence[Task]:
        return self._tasks[split]

    def start(self, task: Task) -> R2EEpisode:
        return R2EEpisode(self, task)

    def demonstrations(self, seed: int) -> Iterator[Demonstration]:
        """Of generated repositories, whatever the tasks are: nobody has demonstrated those of a data folder."""
        return demonstrations(seed, self.share_right)

    @cached_property
    def _tasks(self) -> dict[Split, tuple[Task, ...]]:
        if self.data is not None:
            return r2e_data.read_tasks(self.data)
        return {"train": r2e_repos.tasks("train", self.seed), "held_out": r2e_repos.tasks("held_out", self.seed)}


class R2EEpisode:
    """See `Episode`. Its folder appears with the first call. The last one is answered too: it may mend the bug."""

    is_cut = False

    def __init__(self, environment: R2EGym, task: Task) -> None:
        self._environment, self._task = environment, task
        self._truth = msgspec.convert(task.truth, Truth)
        self._folder: Path | None = None

    async def step(self, completion: str) -> Observation | None:
        """None for `<done></done>` and for a turn that does not even begin a call: the policy has nothing to do."""
        call = CALL.search(completion)
        if call is None:
            tag = TAG.search(completion)
            return _failed(tag[1], "no such call") if tag else None
        if call[1] == "done":
            return None
        return await self._bash(call[2]) if call[1] == "bash" else self._edit(call[2])

    async def reward(self) -> float:
        """1 when all hidden tests pass. Sources left as they were earn nothing: each task has a bug."""
        if self._folder is None:
            return 0.0
        sources = agent_sources(self._truth, self._folder)
        if sources is None or all(self._truth.files[name] == text for name, text in sources.items()):
            return 0.0
        key = (self._task.id, msgspec.json.encode(sources).decode())
        graded = self._environment.graded
        if key not in graded:
            graded[key] = await passes(self._environment.sandbox, self._environment.work, self._truth, sources)
        return float(graded[key])

    async def close(self) -> None:
        if self._folder is not None:
            remove(self._folder)
            self._folder = None

    def _place(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(dir=self._environment.work, prefix="episode-"))
            write_files(self._folder, self._truth.files)
        return self._folder

    async def _bash(self, command: str) -> Observation:
        if "\0" in command:
            return _failed("bash", "no such call")
        argv = ["bash", "-c", command.encode(errors="replace").decode()]
        result = await self._environment.sandbox.run(argv, self._place(), LIMITS)
        return Observation("bash", observation_text(shown(result)), result.status, result.latency_s)

    def _edit(self, call: str) -> Observation:
        started_s = time.perf_counter()
        status: ToolStatus = "ok"
        said = "ok"
        try:
            edit_line(self._place(), call)
        except ToolError as error:
            status, said = "error", str(error)
        return Observation("edit", observation_text(said), status, time.perf_counter() - started_s)


def remove(folder: Path) -> None:
    """Delete a folder of which an agent may have made anything: `rm` copes with any depth, and follows no link."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwx", str(folder)], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def _failed(tool: str, said: str) -> Observation:
    return Observation(tool, observation_text(said), "error", 0.0)
