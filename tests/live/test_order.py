"""What the client tells the router's actor arrives in order, though an actor may take up calls in any order."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from verl.workers.rollout.replica import TokenOutput

from libra.core.events import ToolReturned
from libra.integrations.turns import Ended, Turn
from libra.integrations.verl.agent_loop import CURRENT, LibraAgentLoopWorker, LibraClient, Trajectory
from tests.unit.integrations.conftest import Scene

LATE_S = 0.02
PROMPT, PAYLOAD, ANSWER = [1] * 4, [2] * 3, [3] * 5


class Call:
    """A method of an actor: a call without an answer to wait for is taken up late."""

    def __init__(self, method: Any, late_s: float = 0.0) -> None:
        self._method, self._late_s = method, late_s

    async def _take_up(self, given: tuple[Any, ...], asked: dict[str, Any]) -> Any:
        await asyncio.sleep(self._late_s)
        return self._method(*given, **asked)

    def remote(self, *given: Any, **asked: Any) -> Any:
        return asyncio.get_running_loop().create_task(self._take_up(given, asked))


def router(scene: Scene, engine: Any) -> Any:
    """Questions are answered at once, reports arrive late."""
    session = scene.session

    def acquire(turn: Turn, **_: Any) -> tuple[str, Any]:
        return str(session.place(turn)), SimpleNamespace(generate=Call(engine))

    return SimpleNamespace(
        require_acquire_fields=Call(lambda: ["turn", "is_evaluation"]), require_release_fields=Call(lambda: []),
        acquire_server=Call(acquire), release_server=Call(lambda **_: None), ended=Call(session.ended),
        turn_done=Call(session.turn_done, LATE_S), turn_lost=Call(session.turn_lost, LATE_S),
    )  # fmt: skip


def client(actor: Any) -> LibraClient:
    rollout = SimpleNamespace(response_length=64, max_model_len=None, full_determinism=False)
    return LibraClient(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), actor)


def answer(**_: Any) -> TokenOutput:
    return TokenOutput(token_ids=ANSWER, log_probs=[0.0] * len(ANSWER), stop_reason="completed", num_preempted=0)


@pytest.fixture
def scene() -> Scene:
    found = Scene()
    found.begin()
    return found


def play(scene: Scene, engine: Any = answer) -> None:
    """Two turns with a tool between them, and the end, each as soon as the one before is over."""

    async def run() -> None:
        CURRENT.set(Trajectory("k", "p", "g", 0, 0, is_evaluation=False))
        actor = router(scene, engine)
        turns = client(actor)
        context = list(PROMPT)
        for payload in (PAYLOAD, []):
            output = await turns.generate("r", prompt_ids=context, sampling_params={})
            context += output.token_ids + payload
        worker = SimpleNamespace(llm_client=turns)
        await LibraAgentLoopWorker._tell_end(worker, Ended("k", "completed"))
        await asyncio.sleep(2 * LATE_S)

    asyncio.run(run())


def test_a_turns_end_comes_before_the_next_question_and_the_end(scene: Scene) -> None:
    play(scene)
    (returned,) = (event for event in scene.kept.events if isinstance(event, ToolReturned))
    assert (returned.turn, returned.payload_tok, returned.context_tok) == (1, len(PAYLOAD), 12)
    live = scene.session.ended_keys["k"]
    assert (live.num_turns, live.generated_tok, live.observed_tok) == (2, 2 * len(ANSWER), len(PAYLOAD))


def test_a_turn_that_was_lost_has_left_its_engine_before_it_is_asked_again(scene: Scene) -> None:
    working, tries = [], iter(("aborted", "completed", "completed"))

    def engine(**_: Any) -> TokenOutput:
        working.append(scene.session._books.working.total())
        reason = next(tries)
        ids = ANSWER[:1] if reason == "aborted" else ANSWER
        return TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids), stop_reason=reason, num_preempted=0)

    play(scene, engine)
    assert working == [1, 1, 1]
