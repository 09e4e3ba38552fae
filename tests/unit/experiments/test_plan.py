"""`libra plan`: what it answers to stage times, and to figures that contradict one another."""

from __future__ import annotations

import json

import pytest

from experiments.commands.plan import Times, gpus_of, plan
from libra.core.errors import ConfigError


def answer(
    capsys: pytest.CaptureFixture[str], rollout_s: float, train_s: float, gpus: str, pipeline: str = "",
    *, longest_s: float = 0.0, as_json: bool = False,
) -> str:  # fmt: skip
    plan(Times(rollout_s, train_s, gpus, longest_s, pipeline, 60.0), as_json=as_json)
    return capsys.readouterr().out


def test_overlap_is_recommended_where_stages_take_turns(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 2252, 1800, "16:16", "serial")
    assert text.startswith("Keep 16:16 and overlap the stages: 4,052 s -> 2,252 s a step, 44% to 44% saved.")
    assert "paid back after 1 step." in text
    assert "Bound: 2,026 s" in text


def test_gpus_move_to_the_slower_stage(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 100, 400, "16:16")
    assert text.startswith("Move from 16:16 to 8:24: 400 s -> 266.7 s")


def test_it_abstains_where_the_gain_is_not_sure(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(answer(capsys, 357.41, 377.51, "32", as_json=True))
    assert found["stay"]
    assert found["pays_back_after_steps"] is None
    assert found["bound_s"] == pytest.approx(357.41 + 377.51)
    assert answer(capsys, 357.41, 377.51, "32").startswith("Stay at 32 colocated")


def test_a_long_trajectory_limits_what_more_gpus_buy(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, 400, 100, "16:16", longest_s=390)
    assert text.startswith("Move from 16:16 to 24:8: 400 s -> 390 s")
    assert "rollout waits 390 s for the longest trajectory" in text


@pytest.mark.parametrize("text", ["", "16:", "a:b", "16:16:16", "-8:8", "0:8", "8.5"])
def test_counts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no GPU counts"):
        gpus_of(text)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (Times(None, 1, "8:8", 0, "", 60), "incomplete"),
        (Times(1, 1, "8:8", 0, "asinc", 60), "did you mean 'async'"),
        (Times(1, 1, "8", 0, "async", 60), "take turns"),
        (Times(1, 1, "8:8", 0, "colocated", 60), "the same GPUs"),
        (Times(float("nan"), 1, "8:8", 0, "", 60), "rollout_s"),
    ],
)
def test_contradictions_are_refused(times: Times, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(times, as_json=False)
