"""Episodes in the real sandbox: what tools answer, what ends well, and what must not count as a mended bug."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from libra.backends.live.sandbox import open_sandbox
from libra.core.errors import ConfigError
from libra.workloads.environments import r2e_repos
from libra.workloads.environments.base import EnvironmentContext, Observation, Task
from libra.workloads.environments.r2e_expert import demonstrations
from libra.workloads.environments.r2e_gym import R2EGym
from libra.workloads.environments.r2e_repos import repos
from libra.workloads.r2e_gym import WORKLOAD

SOURCE = "def mean(xs):\n    # mean of xs\n    if not xs:\n        return 0\n    return sum(xs) * len(xs)\n"
RIGHT = "<edit>stats.py:5: return sum(xs) / len(xs)</edit>"
TASK = Task(
    "mean",
    "Fix mean in stats.py\n",
    {
        "files": {"stats.py": SOURCE, "test.py": "from stats import mean\nassert mean([1, 3]) == 2\n"},
        "sources": ["stats.py"],
        "hidden": [
            {"module": "stats", "function": "mean", "arguments": [[1, 3]], "expected": 2.0},
            {"module": "stats", "function": "mean", "arguments": [[]], "expected": 0},
        ],
    },
)
Play = Callable[..., tuple[list[Observation | None], float]]


@pytest.fixture
def environment(tmp_path: Path) -> R2EGym:
    work = tmp_path / "work"
    work.mkdir()
    assert WORKLOAD.environment is not None
    return WORKLOAD.environment(EnvironmentContext(work, open_sandbox(), seed=3))


@pytest.fixture
def play(environment: R2EGym) -> Play:
    """Observations and reward of a policy that says these turns; afterwards no folder may be left."""

    async def episode(task: Task, turns: tuple[str, ...]) -> tuple[list[Observation | None], float]:
        running = environment.start(task)
        try:
            return [await running.step(turn) for turn in turns], await running.reward()
        finally:
            await running.close()
            await running.close()

    def run(*turns: str, task: Task = TASK) -> tuple[list[Observation | None], float]:
        result = asyncio.run(episode(task, turns))
        assert list(environment.work.iterdir()) == []
        return result

    return run


def only(result: tuple[list[Observation | None], float]) -> Observation:
    (seen,), _ = result
    assert seen is not None
    return seen


# What tools answer.


def test_a_bug_is_found_mended_tested_and_rewarded(play: Play) -> None:
    seen, reward = play("<bash>cat stats.py</bash>", RIGHT, "<bash>python test.py</bash>", "<done></done>")
    assert [(o.tool, o.text, o.status) if o else None for o in seen] == [
        ("bash", f"<output>{SOURCE.rstrip()}</output>", "ok"),
        ("edit", "<output>ok</output>", "ok"),
        ("bash", "<output></output>", "ok"),
        None,
    ]
    assert reward == 1.0


def test_thoughts_before_a_call_are_free_and_the_file_keeps_its_indentation(play: Play) -> None:
    seen, _ = play("I think so. " + RIGHT, "<bash>sed -n 5p stats.py</bash>")
    assert seen[1] is not None and seen[1].text == "<output>    return sum(xs) / len(xs)</output>"


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ("<python>1</python>", "no such call"),
        ("<bash>cat stats.py", "no such call"),
        ("<bash>cat \0</bash>", "no such call"),
        ("<bash>exit 3</bash>", "[exit 3]"),
        ("<bash>cat none.py</bash>", "cat: none.py: No such file or directory"),
        ("<edit>stats.py</edit>", "not FILE:LINE: text"),
        ("<edit>stats.py:5: a\nb</edit>", "not FILE:LINE: text"),
        ("<edit>none.py:1: x</edit>", "no such file"),
        ("<edit>stats.py:6: x</edit>", "no line 6"),
        ("<edit>stats.py:0: x</edit>", "no line 0"),
        ("<edit>../stats.py:1: x</edit>", "not in the folder"),
        ("<edit>/etc/passwd:1: x</edit>", "not in the folder"),
        ("<edit>a\0b:1: x</edit>", "not in the folder"),
        ("<edit>.:1: x</edit>", "not in the folder"),
    ],
)
def test_a_call_that_fails_is_an_observation_and_the_episode_goes_on(play: Play, turn: str, said: str) -> None:
    seen, reward = play(turn, RIGHT, "<done></done>")
    assert seen[0] is not None and (seen[0].text, seen[0].status) == (f"<output>{said}</output>", "error")
    assert reward == 1.0


def test_status_comes_from_the_exit_status_and_not_from_the_text(play: Play) -> None:
    assert only(play("<bash>echo 0 errors, 12 passed, Traceback</bash>")).status == "ok"
    assert only(play("<bash>echo all passed; exit 1</bash>")).status == "error"


def test_endless_and_huge_outputs_are_observations(play: Play) -> None:
    seen, reward = play("<bash>sleep 100</bash>", "<bash>yes</bash>", RIGHT)
    assert seen[0] is not None and (seen[0].status, seen[0].text) == ("timeout", "<output>[stopped: wall_s]</output>")
    assert seen[1] is not None and seen[1].status in ("timeout", "error")
    assert seen[1].text.startswith("<output>y\ny\n") and len(seen[1].text) < 600
    huge = only(play("<bash>head -c 100000000 /dev/zero | tr '\\0' x</bash>"))
    assert huge.text == f"<output>{'x' * 480}...</output>"
    assert reward == 1.0


def test_saying_nothing_ends_the_episode(play: Play) -> None:
    assert play("I give up") == ([None], 0.0)
    assert play("<done></done>") == ([None], 0.0)


@pytest.mark.parametrize("way", ["ln -s {outside} x.py", "ln {outside} x.py", "mkfifo x.py", "mkdir x.py",
                                 "mkdir d; ln -s {place} d/e; ln -s d/e/outside.txt x.py"])  # fmt: skip
def test_edits_do_not_leave_the_folder(play: Play, tmp_path: Path, way: str) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("as it was\n")
    seen, _ = play(f"<bash>{way.format(outside=outside, place=tmp_path)}</bash>", "<edit>x.py:1: changed</edit>",
                   "<edit>d/e/outside.txt:1: changed</edit>")  # fmt: skip
    assert [o.status for o in seen[1:] if o] == ["error", "error"]
    assert outside.read_text() == "as it was\n"


# What counts.

REWRITE = "<bash>cat >stats.py <<'E'\n{}\nE</bash>"


@pytest.mark.parametrize(
    "turns",
    [
        ["<bash>echo 'print(1)' >test.py</bash>"],
        ["<bash>echo 'import os; os._exit(0)' >sitecustomize.py; cp sitecustomize.py conftest.py</bash>"],
        [REWRITE.format("import sys\nsys.exit(0)")],
        [REWRITE.format("import os\nos._exit(0)")],
        [REWRITE.format("print('[]')\nraise SystemExit(0)")],
        [REWRITE.format('import os\nprint(\'[{"value": true}, {"value": true}]\', flush=True)\nos._exit(0)')],
        [REWRITE.format("class Any:\n    def __eq__(self, o): return True\ndef mean(xs): return Any()")],
        [REWRITE.format("class Any(float):\n    def __eq__(self, o): return True\ndef mean(xs): return Any(9)")],
        [REWRITE.format("import json\njson.dumps = lambda *a, **k: 'true'\ndef mean(xs): return 0")],
        [REWRITE.format("def mean(xs): return 2 if xs else 0")],  # 2 is not 2.0
        [REWRITE.format("import time\ntime.sleep(60)")],
        [REWRITE.format("def mean(xs):\n    while True: pass")],
        [REWRITE.format("print('x' * 10**8)\ndef mean(xs): return 0")],
        ["<bash>rm stats.py</bash>"],
        ["<bash>rm stats.py; ln -s /etc/passwd stats.py</bash>"],
        ["<bash>rm stats.py; mkfifo stats.py</bash>"],
        ["<bash>echo 'def mean(xs): return sum(xs) / len(xs) if xs else 0' >other.py; ln -sf other.py stats.py</bash>"],
        ["<bash>echo 'def mean(xs): return sum(xs) / len(xs) if xs else 0' >statistics.py</bash>"],
        ["<edit>stats.py:5: return sum(xs) / (len(xs)</edit>"],
        ["<bash>cat stats.py</bash>", "<edit>stats.py:5: return sum(xs) * len(xs)</edit>"],
    ],
)
def test_what_is_not_mended_earns_nothing(play: Play, turns: list[str]) -> None:
    assert play(*turns)[1] == 0.0


def test_what_else_the_agent_leaves_does_not_spoil_a_mended_bug(play: Play) -> None:
    hinder = "for f in json os importlib sitecustomize; do echo 'raise SystemExit(1)' >$f.py; done; mkdir a; chmod 0 a"
    deep = "for n in {1..1500}; do mkdir d; cd d; done"
    assert play(f"<bash>{hinder}</bash>", f"<bash>{deep}</bash>", RIGHT)[1] == 1.0


def test_hidden_tests_are_not_in_reach(play: Play, environment: R2EGym) -> None:
    (environment.work.parent / "answers.json").write_text("2.0")
    seen = only(play(f"<bash>ls -A; ls -A /tmp; cat {environment.work.parent}/*; ls {environment.work}</bash>"))
    assert seen.text.startswith("<output>stats.py\ntest.py\ncat: ") and seen.status == "error"
    assert seen.text.count("No such file or directory") == 2


def test_an_equal_end_is_graded_once(play: Play, environment: R2EGym) -> None:
    assert play(RIGHT)[1] == play("<bash>cat test.py</bash>", RIGHT)[1] == 1.0
    assert len(environment.graded) == 1


# Tasks and demonstrations.


def test_tasks_are_many_different_and_the_same_on_every_call(environment: R2EGym) -> None:
    train, held_out = environment.tasks("train"), environment.tasks("held_out")
    assert (len({t.id for t in train}), len({t.id for t in held_out})) == (640, 128)
    assert environment.tasks("train") == train == r2e_repos.tasks("train", 3)
    assert r2e_repos.tasks("train", 4) != train


def test_no_held_out_pair_of_function_and_constant_is_ever_shown_in_training() -> None:
    def pairs(split: r2e_repos.Split) -> set[tuple[str, int]]:
        drawn = list(itertools.islice(repos(split, "any"), 6_000))
        return {(repo.shape.key, constant) for repo in drawn for constant in (repo.k, repo.other)}

    train, held_out = pairs("train"), pairs("held_out")
    assert train & held_out == set()
    assert {key for key, _ in train} == {key for key, _ in held_out}
    assert len(train) > 150 and len(held_out) > 30


def test_every_bug_fails_its_visible_test_and_the_right_line_mends_it() -> None:
    families = set()
    for repo in itertools.islice(repos("train", "bugs"), 3_000):
        values, right = repo.visible()
        assert not r2e_repos.is_same(r2e_repos.outcome(repo.source(repo.bug), repo.name, values), right)
        lines = repo.source(repo.bug).splitlines()
        number = repo.line(repo.bug)
        lines[number - 1] = repo.source(None).splitlines()[number - 1]
        assert "\n".join(lines) + "\n" == repo.source(None)
        assert repo.source(None).splitlines()[number - 1].strip() == repo.right_line(repo.bug)
        assert 3 <= len(lines) <= 8
        families.add(repo.bug.family)
    assert families == {"operator", "constant", "return", "variable", "comparison", "off by one"}


def test_demonstrations_are_what_the_tools_answer_and_the_reward_says(play: Play) -> None:
    outcomes = set()
    for repo, shown in zip(repos("train", "demonstrations", 7), itertools.islice(demonstrations(7), 80), strict=False):
        task = repo.task()
        assert shown.prompt == task.prompt
        turns = [segment.text for segment in shown.segments if segment.by_policy]
        seen, reward = play(*turns, task=task)
        told = [segment.text for segment in shown.segments if not segment.by_policy]
        assert [o.text if o else None for o in seen] == [*told, None]
        assert (reward == 1.0) == shown.is_right
        outcomes.add((shown.is_right, len(turns)))
    assert len(outcomes) >= 5


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.1), (0.4, 0.38, 0.46), (1.0, 1.0, 1.0)])
def test_about_the_wanted_share_of_demonstrations_is_right(share: float, low: float, high: float) -> None:
    drawn = list(itertools.islice(demonstrations(1, share), 4_000))
    assert low <= sum(each.is_right for each in drawn) / len(drawn) <= high


def test_demonstrations_are_deterministic_and_of_the_training_side(environment: R2EGym) -> None:
    first = list(itertools.islice(environment.demonstrations(5), 300))
    assert first == list(itertools.islice(environment.demonstrations(5), 300))
    assert first != list(itertools.islice(environment.demonstrations(6), 300))
    held_out = {next(iter(task.truth["files"].values())) for task in environment.tasks("held_out")}
    for each in first:
        assert all(each.segments[n].by_policy == (n % 2 == 0) for n in range(len(each.segments)))
        assert not any(source in "".join(s.text for s in each.segments) for source in held_out)


def test_a_task_survives_json(environment: R2EGym) -> None:
    task = environment.tasks("train")[0]
    assert msgspec.json.decode(msgspec.json.encode(task), type=Task) == task
    environment.start(task)


# Data folders.


def line(**changes: object) -> str:
    return json.dumps({"id": "a", "prompt": TASK.prompt, **TASK.truth, **changes})


def with_data(folder: Path, train: str, held_out: str) -> R2EGym:
    (folder / "train.jsonl").write_text(train)
    (folder / "held_out.jsonl").write_text(held_out)
    assert WORKLOAD.environment is not None
    return WORKLOAD.environment(EnvironmentContext(folder, open_sandbox(), data=folder))


def test_tasks_come_from_a_data_folder(tmp_path: Path) -> None:
    environment = with_data(tmp_path, line() + "\n" + line(id="b"), line(id="c"))
    assert [task.id for task in environment.tasks("train")] == ["a", "b"]
    (held_out,) = environment.tasks("held_out")
    assert (held_out.prompt, held_out.truth) == (TASK.prompt, TASK.truth)


@pytest.mark.parametrize(
    ("train", "held_out", "message"),
    [
        ("", line(), "train.jsonl: no task in there"),
        ("{", line(), "train.jsonl, line 1: no task: Input data was truncated"),
        (line() + "\n" + line(), line(id="c"), r"line 2: two tasks with one id .*\n.*train.jsonl, line 1"),
        (line(), line(), "held_out.jsonl, line 1: two tasks with one id"),
        (line(extra=1), line(id="c"), "unknown field `extra`"),
        (line(files={"../x.py": ""}), line(id="c"), "a file outside the repository"),
        (line(sources=["none.py"]), line(id="c"), r"a source that is no file of the task .*\n.*allowed: stats.py"),
        (line(sources=[]), line(id="c"), "sources is empty"),
        (line(hidden=[]), line(id="c"), "hidden is empty"),
        (line(hidden=[{"module": "stats"}]), line(id="c"), "missing required field `function`"),
    ],
)
def test_a_data_folder_that_is_wrong_is_refused(tmp_path: Path, train: str, held_out: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_data(tmp_path, train, held_out).tasks("train")


def test_a_missing_data_folder_and_a_missing_sandbox_are_refused(tmp_path: Path) -> None:
    assert WORKLOAD.environment is not None
    with pytest.raises(ConfigError, match="no sandbox"):
        WORKLOAD.environment(EnvironmentContext(tmp_path))
    with pytest.raises(ConfigError, match=r"train.jsonl: cannot be read: No such file"):
        WORKLOAD.environment(EnvironmentContext(tmp_path, open_sandbox(), data=tmp_path / "none")).tasks("train")
