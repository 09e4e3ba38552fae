"""Verdicts of math-verify, and a pool that survives what hangs, dies or answers nonsense."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.workloads.rewards.math_answer import WORKER, MathJudge

SCRIPT = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["answer"] == "hang":
        time.sleep(3600)
    if asked["answer"] == "die":
        os._exit(1)
    if asked["answer"] == "mumble":
        print("{}", flush=True)
    else:
        print(json.dumps({"right": asked["answer"] == asked["truth"], "pid": os.getpid()}), flush=True)
    if asked["answer"] == "last words":
        os._exit(0)
"""


@pytest.fixture
def script(tmp_path: Path) -> tuple[str, str]:
    """A verifier that compares texts and misbehaves on demand."""
    path = tmp_path / "verifier.py"
    path.write_text(SCRIPT)
    return sys.executable, str(path)


@pytest.fixture(scope="module")
def judge() -> Iterator[MathJudge]:
    pytest.importorskip("math_verify", reason="answers are judged by math-verify")
    judge = MathJudge()
    yield judge
    judge.close()


def ask(judge: MathJudge, *pairs: tuple[str, str]) -> list[str]:
    """All at once, in one event loop."""

    async def all_of_them() -> list[str]:
        return list(await asyncio.gather(*(judge.verdict(*pair) for pair in pairs)))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("bad", ["die", "mumble"])
def test_the_pool_recovers_from_a_verifier_that_dies_or_mumbles(script: tuple[str, str], bad: str) -> None:
    judge = MathJudge(command=script)
    assert ask(judge, ("1", "1")) == ["right"]
    assert ask(judge, (bad, "1"), ("1", "1"), ("2", "1")) == ["failed", "right", "wrong"]
    judge.close()


def test_the_pool_recovers_from_a_verifier_that_hangs(script: tuple[str, str]) -> None:
    judge = MathJudge(command=script, time_s=2.0)
    assert ask(judge, ("hang", "1"), ("1", "1")) == ["failed", "right"]
    judge.close()


def test_verdicts_reach_who_asked(script: tuple[str, str]) -> None:
    judge = MathJudge(command=script, num_workers=2)
    assert ask(judge, *[(str(i % 3), "1") for i in range(30)]) == ["wrong", "right", "wrong"] * 10
    judge.close()


def test_a_verifier_that_died_while_idle_is_replaced(script: tuple[str, str]) -> None:
    judge = MathJudge(command=script)
    assert ask(judge, ("last words", "last words")) == ["right"]
    ask(judge, ("1", "1"))  # may still meet the dying one
    assert ask(judge, ("1", "1")) == ["right"]
    judge.close()


def test_a_verifier_that_does_not_start_is_an_error_and_no_reward(tmp_path: Path) -> None:
    judge = MathJudge(command=(sys.executable, str(tmp_path / "absent.py")))
    with pytest.raises(ConfigError, match="the verifier of answers does not start"):
        ask(judge, ("1", "1"))
    judge.close()


def test_closing_ends_the_verifiers(script: tuple[str, str], tmp_path: Path) -> None:
    path = Path(script[1])
    path.write_text(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))\n" + SCRIPT)
    judge = MathJudge(command=script)
    assert ask(judge, ("1", "1")) == ["right"]
    pid = (tmp_path / "pid").read_text()
    assert Path(f"/proc/{pid}").exists() or not Path("/proc").exists()
    judge.close()
    judge.close()
    assert not Path(f"/proc/{pid}").exists()


def test_an_endless_answer_is_wrong_without_a_verifier(tmp_path: Path) -> None:
    judge = MathJudge(command=(str(tmp_path / "absent"),))
    assert ask(judge, ("1" * 10_000, "1")) == ["wrong"]
    judge.close()


@pytest.mark.parametrize(
    ("answer", "truth", "verdict"),
    [
        ("7/6", r"\frac{7}{6}", "right"),
        (r"\frac{14}{12}", r"\frac{7}{6}", "right"),
        ("-1/6", r"-\frac{1}{6}", "right"),
        (r"\{3, 2, 1\}", r"\{1, 2, 3\}", "right"),
        ("[3,5]", "[3, 5]", "right"),
        ("0.5", r"\frac{1}{2}", "right"),
        ("1,024", "1024", "right"),
        (r"\sqrt{8}", r"2\sqrt{2}", "right"),
        ("(3, 5)", "[3, 5]", "wrong"),
        ("[3, 6]", "[3, 5]", "wrong"),
        (r"\{1, 2\}", r"\{1, 2, 3\}", "wrong"),
        ("1, 2, 3", "1", "wrong"),
        ("7/5", r"\frac{7}{6}", "wrong"),
        ("", "7", "wrong"),
        ("]", "7", "wrong"),
        ("\ud800\x00", "7", "wrong"),
    ],
)
def test_verdicts(judge: MathJudge, answer: str, truth: str, verdict: str) -> None:
    assert ask(judge, (answer, truth)) == [verdict]


def test_an_endless_computation_is_ended_and_the_next_answer_judged(judge: MathJudge) -> None:
    hasty = MathJudge(time_s=0.5)
    assert ask(hasty, ("9^{9^{9^{9}}}", "1")) == ["failed"]
    assert ask(judge, ("9^{9^{9^{9}}}", "1"), ("1", "1")) == ["wrong", "right"]
    hasty.close()


def test_a_verifier_imports_neither_torch_nor_libra() -> None:
    pytest.importorskip("math_verify", reason="the verifier imports it")
    program = (
        "import json, runpy, sys\n"
        f"verdict = runpy.run_path({WORKER[-1]!r})['verdict']\n"
        "right = verdict('7/6', r'\\frac{7}{6}')\n"
        "print(json.dumps([right, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    is_right, modules = json.loads(done.stdout)
    assert is_right and "sympy" in modules
    assert set(modules) & {"torch", "libra", "transformers", "ray"} == set()
