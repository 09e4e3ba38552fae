"""When the supervisor gives a job up: a trainer that waits while no trajectory says a word."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from libra.integrations.verl import supervisor as module
from libra.integrations.verl.router import LibraRouter
from libra.integrations.verl.supervisor import STALL_S, Supervisor


class Call:
    """An actor's method whose answer is there at once."""

    def __init__(self, answer: float) -> None:
        self.answer = answer

    def remote(self) -> float:
        return self.answer


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A supervisor of nothing, with `clock.now_s` and the router's `quiet.answer` in the test's hands."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now_s)
    quiet = Call(0.0)
    trainer = SimpleNamespace(
        router=SimpleNamespace(quiet_s=quiet),
        plan=SimpleNamespace(instances=()),
        standalone_server_manager=SimpleNamespace(rollout_replicas=()),
    )
    return SimpleNamespace(supervisor=Supervisor(trainer), clock=clock, quiet=quiet)


def test_a_trainer_that_waits_for_a_silent_trajectory_is_given_up(scene: Any) -> None:
    assert scene.supervisor._stall() is None
    scene.clock.now_s = scene.quiet.answer = STALL_S + 1
    assert "no trajectory has moved for 3601 s" in scene.supervisor._stall()


def test_a_long_training_step_is_no_stall(scene: Any) -> None:
    scene.supervisor.lock.acquire()
    scene.clock.now_s = scene.quiet.answer = 10 * STALL_S
    assert scene.supervisor._stall() is None
    scene.supervisor.lock.release()
    assert scene.supervisor._stall() is None  # the wait has only begun


def test_long_waits_with_moving_trajectories_are_none(scene: Any) -> None:
    scene.supervisor._stall()
    scene.clock.now_s, scene.quiet.answer = 10 * STALL_S, STALL_S / 2
    assert scene.supervisor._stall() is None


def test_a_policy_that_fails_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were its exception only its trajectory's, verl would draw another prompt, and the sample would be biased."""
    router = object.__new__(LibraRouter)
    router._policy_error = ""
    monkeypatch.setattr(router, "_watch_engines", lambda: None, raising=False)
    monkeypatch.setattr(router, "_choose", lambda turn: {}["no such bucket"], raising=False)

    async def ask() -> str | None:
        with pytest.raises(KeyError):
            await router.acquire_server("a", is_evaluation=True)
        return await router.take_failure()

    assert asyncio.run(ask()) == "the policy failed: KeyError: 'no such bucket'"
