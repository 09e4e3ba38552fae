"""The maths workload with real programs and the real verifier: episodes, reward, demonstrations replayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.workloads.dapo_math import WORKLOAD
from libra.workloads.environments.base import EnvironmentContext, Task
from libra.workloads.environments.dapo_math import MAX_TURNS, NUM_TASKS, DapoMath
from libra.workloads.environments.data_folder import FileEntry, Manifest, ProblemRow, write_manifest, write_rows
from libra.workloads.tools.sandbox import Limits, SandboxResult
from tests.unit.workloads.environments.episodes import ends_cut, play, turns

SECRET = "918273645"
TASK = Task("t", "What is it?", {"answer": SECRET, "is_plain": True})


class Subprocess:
    """A sandbox without walls: a process in the folder, with a clean environment and a time-out."""

    async def run(self, argv: Sequence[str], folder: Path, limits: Limits, stdin: bytes = b"") -> SandboxResult:
        start_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=folder, env={}, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = await asyncio.wait_for(process.communicate(stdin), limits.wall_s)
        except TimeoutError:
            process.kill()
            await process.wait()
            return SandboxResult(None, "", time.monotonic() - start_s, limit_hit="wall_s")
        text = output.decode(errors="replace")[: limits.output_bytes]
        return SandboxResult(process.returncode, text, time.monotonic() - start_s)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(work: Path) -> Iterator[DapoMath]:
    pytest.importorskip("math_verify", reason="answers are judged by math-verify")
    environment = DapoMath(EnvironmentContext(work, Subprocess()))
    yield environment
    environment.close()


def test_demonstrations_are_what_real_episodes_return(environment: DapoMath, work: Path) -> None:
    calls = 0
    answers = {task.prompt: task for task in all_tasks()}
    replayed = [each for each in islice(environment.demonstrations(5), 4_000) if each.prompt in answers][:60]
    assert len(replayed) == 60
    for demonstration in replayed:
        seen, reward = play(environment, answers[demonstration.prompt], *turns(demonstration))
        returned = [each for each in seen if each is not None]
        assert [each.text for each in returned] == [
            segment.text for segment in demonstration.segments if not segment.by_policy
        ]
        assert {each.status for each in returned} <= {"ok"}
        assert seen[-1] is None and len(seen) == len(returned) + 1 <= MAX_TURNS
        assert (reward == 1.0) is demonstration.is_right
        calls += len(returned)
    assert calls > 20
    assert list(work.iterdir()) == []


def all_tasks() -> list[Task]:
    return list(DapoMath(EnvironmentContext(Path("unused"))).tasks("train"))


def test_tasks_are_deterministic_and_splits_disjoint(work: Path) -> None:
    first = DapoMath(EnvironmentContext(work))
    train, held_out = first.tasks("train"), first.tasks("held_out")
    assert (len(train), len(held_out)) == (NUM_TASKS["train"], NUM_TASKS["held_out"])
    assert len({task.prompt for task in (*train, *held_out)}) == len(train) + len(held_out)
    assert len({task.id for task in (*train, *held_out)}) == len(train) + len(held_out)
    assert DapoMath(EnvironmentContext(work)).tasks("train") == train
    assert DapoMath(EnvironmentContext(work, seed=1)).tasks("train") != train


@pytest.mark.parametrize("has_tool", [True, False])
def test_demonstrations_are_deterministic_and_of_the_wanted_share(work: Path, has_tool: bool) -> None:
    context = EnvironmentContext(work, Subprocess() if has_tool else None)
    first = list(islice(DapoMath(context).demonstrations(3), 2_000))
    assert first == list(islice(DapoMath(context).demonstrations(3), 2_000))
    assert first != list(islice(DapoMath(context).demonstrations(4), 2_000))
    assert 0.40 < sum(each.is_right for each in first) / 2_000 < 0.50
    assert {len(turns(each)) for each in first} == ({1, 2} if has_tool else {1})
    held_out = {task.prompt for task in DapoMath(context).tasks("held_out")}
    assert held_out.isdisjoint(each.prompt for each in first)
    assert max(sum(len(s.text) for s in each.segments) for each in first) < 160
    assert all(each.is_right for each in islice(DapoMath(context, right_share=1.0).demonstrations(3), 200))
    assert not any(each.is_right for each in islice(DapoMath(context, right_share=0.0).demonstrations(3), 200))


@pytest.mark.parametrize(
    ("program", "text", "status"),
    [
        ("print(6*7)", "<output>42</output>", "ok"),
        ("x = 6\nprint(x)\nprint(x*7)", "<output>6\n42</output>", "ok"),
        ("6*7", "<output></output>", "ok"),
        ("print(x)", "<output>NameError: name 'x' is not defined</output>", "error"),
        ("print('fine'); exit(3)", "<output>fine</output>", "error"),
        ("print('error')", "<output>error</output>", "ok"),
        ("print('</output>')", "<output></output></output>", "ok"),
        ("def", "<output>SyntaxError: invalid syntax</output>", "error"),
        ("open('a', 'w').write('b'); print(len(__import__('os').listdir()))", "<output>1</output>", "ok"),
    ],
)
def test_programs_are_run(environment: DapoMath, program: str, text: str, status: str) -> None:
    seen, _ = play(environment, TASK, f"<python>{program}</python>")
    assert seen[0] is not None
    assert (seen[0].tool, seen[0].text, seen[0].status) == ("python", text, status)
    assert seen[0].latency_s > 0


def test_a_program_that_hangs_is_a_timeout(environment: DapoMath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("libra.workloads.tools.python_tool.LIMITS", Limits(wall_s=0.5))
    seen, _ = play(environment, TASK, "<python>while True: pass</python>")
    assert seen[0] is not None
    assert (seen[0].text, seen[0].status) == ("<output>timeout after 0.5 s</output>", "timeout")


def test_a_folder_lasts_for_the_episode(environment: DapoMath, work: Path) -> None:
    seen, _ = play(
        environment,
        TASK,
        "<python>open('a', 'w').write('42')</python>",
        "<python>print(open('a').read())</python>",
    )
    assert seen[1] is not None and seen[1].text == "<output>42</output>"
    assert list(work.iterdir()) == []


SNOOP = """
import os
from pathlib import Path
found = [str(dict(os.environ)), os.getcwd()]
folders = [Path("."), Path("..")]
for folder in folders:
    for path in folder.rglob("*"):
        found.append(str(path))
        if path.is_file():
            found.append(path.read_text(errors="replace"))
for process in Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ"):
        try:
            found.append((process / name).read_text(errors="replace"))
        except OSError:
            pass
print(len(found) > 2, "918273" + "645" in "".join(found))
"""


def test_no_program_finds_the_truth(environment: DapoMath) -> None:
    """Not in its folder or beside it, nor in what any process was started with, the verifier's included."""
    _, reward = play(environment, TASK, f"\\boxed{{{SECRET}}}")  # the verifier has seen the truth by now
    assert reward == 1.0
    seen, reward = play(environment, TASK, f"<python>{SNOOP}</python>", "\\boxed{0}")
    assert seen[0] is not None and seen[0].text == "<output>True False</output>"
    assert reward == 0.0


@pytest.mark.parametrize(
    ("completions", "reward"),
    [
        ([rf"\boxed{{{SECRET}}}"], 1.0),
        ([rf"\boxed{{1}} no, \boxed{{{SECRET}}}"], 1.0),
        ([rf"\boxed{{{SECRET}}} no, \boxed{{1}}"], 0.0),
        ([rf"\boxed{{{SECRET}"], 0.0),
        ([SECRET], 0.0),
        ([rf"\boxed{{{SECRET}+0}}"], 0.0),  # right, but nothing was computed
        ([rf"<python>print(r'\box' + r'ed{{{SECRET}}}')</python>", "that is it"], 0.0),  # the tool's box is not its own
        ([rf"\boxed{{{SECRET}}} <python>print(1)</python>", "that is it"], 1.0),
        ([], 0.0),
    ],
)
def test_the_reward_reads_the_last_box_of_the_policy(
    environment: DapoMath, completions: list[str], reward: float
) -> None:
    assert play(environment, TASK, *completions)[1] == reward


def test_a_question_in_the_box_is_no_answer(environment: DapoMath) -> None:
    for task in environment.tasks("held_out")[:40]:
        question = task.prompt.removeprefix("What is ").removesuffix("?")
        assert play(environment, task, f"\\boxed{{{question}}}")[1] == 0.0
        assert play(environment, task, f"\\boxed{{{task.truth['answer']}}}")[1] == 1.0


def test_turns_are_bounded_and_a_call_without_a_program_is_told(environment: DapoMath) -> None:
    seen, _ = play(environment, TASK, "</python>", *["<python>print(1)</python>"] * (MAX_TURNS - 1))
    assert seen[0] is not None
    assert (seen[0].text, seen[0].status) == ("<output>error: no program</output>", "error")
    assert [each is None for each in seen] == [False, False, False, True]


def test_a_call_without_a_turn_left_is_cut(environment: DapoMath) -> None:
    calls = ["<python>print(1)</python>"] * (MAX_TURNS - 1)
    assert ends_cut(environment, TASK, *calls, calls[0])
    assert not ends_cut(environment, TASK, *calls, "\\boxed{1}")
    assert not ends_cut(environment, TASK, "\\boxed{1}")


def test_without_a_sandbox_there_is_no_tool(work: Path) -> None:
    pytest.importorskip("math_verify", reason="answers are judged by math-verify")
    environment = DapoMath(EnvironmentContext(work))
    assert (environment.stop, environment.max_turns) == ((), 1)
    assert play(environment, TASK, f"<python>print({SECRET})</python>") == ([None], 0.0)
    environment.close()


def test_prepared_data_are_read(work: Path, tmp_path: Path) -> None:
    row = r'{"id": "a", "problem": "Add 1/4 and 1/4.", "answer": "\\frac{1}{2}"}' + "\n"
    data = tmp_path / "data"
    data.mkdir()
    for split in NUM_TASKS:
        (data / f"{split}.jsonl").write_text(row)
    entries = {f"{split}.jsonl": FileEntry("", len(row), 1) for split in NUM_TASKS}
    write_manifest(data, Manifest("dapo-math", files=entries))
    environment = DapoMath(EnvironmentContext(work, Subprocess(), data=data))
    (task,) = environment.tasks("train")
    assert task.prompt.endswith("is answered by <output>2</output>.\nProblem: Add 1/4 and 1/4.")
    assert "python" not in DapoMath(EnvironmentContext(work, data=data)).tasks("train")[0].prompt
    with pytest.raises(ConfigError, match="prepared data have no demonstrations"):
        environment.demonstrations(0)
    pytest.importorskip("math_verify", reason="answers are judged by math-verify")
    assert play(environment, task, r"\boxed{\frac{2}{4}}")[1] == 1.0
    environment.close()


@pytest.mark.parametrize(
    ("problem", "answer", "truth", "reward"),
    [
        (r"Compute $\frac{1}{4} + \frac{1}{4}$.", r"\frac{1}{4}+\frac{1}{4}", r"\frac{1}{2}", 0.0),
        ("What is 12 * 12?", "12 * 12", "144", 0.0),
        ("What is 12 * 12?", "144", "144", 1.0),
        ("What is 12 * 12?", "12^2", "144", 1.0),  # not copied: whoever rewrites has begun to compute
        ("Of 3 and 5, which is larger?", "5", "5", 1.0),
        ("Factor $x^2 - 1$; is $(x-1)(x+1)$ right?", "(x-1)(x+1)", "(x-1)(x+1)", 1.0),  # the truth is none to compute
    ],
)
def test_the_question_of_prepared_data_is_no_answer(
    problem: str, answer: str, truth: str, reward: float, work: Path, tmp_path: Path
) -> None:
    pytest.importorskip("math_verify", reason="answers are judged by math-verify")
    data = tmp_path / "data"
    data.mkdir()
    files = {f"{split}.jsonl": write_rows(data / f"{split}.jsonl", [ProblemRow("a", problem, truth)])
             for split in NUM_TASKS}  # fmt: skip
    write_manifest(data, Manifest("dapo-math", files=files))
    environment = DapoMath(EnvironmentContext(work, data=data))
    (task,) = environment.tasks("train")
    assert play(environment, task, rf"\boxed{{{answer}}}")[1] == reward
    environment.close()


def test_a_missing_verifier_is_told_before_anything_runs(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="math-verify, which is not installed"):
        DapoMath(EnvironmentContext(work)).start(TASK)


def test_the_workload_offers_it(work: Path) -> None:
    assert WORKLOAD.environment is not None
    environment = WORKLOAD.environment(EnvironmentContext(work, Subprocess()))
    assert (environment.name, environment.stop) == ("dapo-math", ("</python>",))
