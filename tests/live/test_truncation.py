"""How a trajectory ended: a turn that ran into its token limit is cut off, unless it had just closed; so is a call that
no tool answered.

Everything is real but the engine, whose answers the tests write.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from verl.workers.rollout.replica import TokenOutput

from libra.integrations.verl import environment_loop
from libra.integrations.verl.agent_loop import CURRENT, LibraClient, Trajectory, _opened, is_unanswered
from libra.workloads.environments.base import Observation
from tests.live.stubs import Remote, balancer

END = 0
LIMIT_TOK = 4
TEXT = {END: "", 1: "a", 2: "<done>", 3: "</done>", 4: "<look>", 5: "</look>"}


class Tokenizer:
    eos_token_id = END

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(TEXT[each] for each in ids)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * len(text)


@dataclass
class Engine:
    """Answers turns from a list, at most as many tokens as asked for."""

    turns: list[list[int]]
    asked: list[int] = field(default_factory=list)

    def answer(self, sampling_params: dict[str, Any], **_: Any) -> TokenOutput:
        self.asked.append(sampling_params["max_tokens"])
        ids = self.turns.pop(0)[: sampling_params["max_tokens"]]
        return TokenOutput(token_ids=ids, log_probs=[0.0] * len(ids), stop_reason="completed", num_preempted=0)


class Episode:
    """A turn that asks is answered, the third one not; any other one is the last."""

    def __init__(self) -> None:
        self.num_asked, self.is_cut = 0, False

    async def step(self, text: str) -> Observation | None:
        asks = "</look>" in text
        self.num_asked += asks
        self.is_cut = asks and self.num_asked == 3
        return Observation("look", "b", "ok", 0.0) if asks and not self.is_cut else None

    async def reward(self) -> float:
        return 0.0


def client(engine: Engine, max_model_len: int | None = None) -> LibraClient:
    rollout = SimpleNamespace(response_length=16, max_model_len=max_model_len, full_determinism=False)
    server = SimpleNamespace(generate=Remote(engine.answer))
    found = LibraClient(SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout)), balancer(server))
    found.end_id = END
    return found


def opened() -> Trajectory:
    trajectory = Trajectory("k", "p", "g", 0, 0, is_evaluation=False)
    CURRENT.set(trajectory)
    return trajectory


@pytest.mark.parametrize(
    ("turns", "status"),
    [
        ([[2, 3]], "completed"),
        ([[1, END]], "completed"),
        ([[1, 1, 1, END]], "completed"),  # ended with the last token that it had
        ([[1, 2, 1, 3]], "completed"),  # closed with it
        ([[1, 1, 1, 1]], "truncated"),
        ([[1, 1, 4, 1]], "truncated"),
        ([[1, 1, 4, 5], [2, 3]], "completed"),  # a full turn that asked is none that was cut
        ([[4, 5], [1, 1, 1, 1]], "truncated"),
        ([[4, 5]] * 3, "truncated"),  # no turns left
        ([[4, 5], [4, 5], [2, 3]], "completed"),
    ],
)
def test_the_status_says_whether_the_last_turn_was_cut(
    turns: list[list[int]], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment_loop, "settings_of", lambda path: SimpleNamespace(shuffle_rewards=False))
    environment = SimpleNamespace(stop=("</look>", "</done>"), max_turns=3, max_turn_tok=LIMIT_TOK)

    async def play() -> str | None:
        trajectory = opened()
        loop = SimpleNamespace(
            rollout_config=SimpleNamespace(router_config_path="", response_length=16), tokenizer=Tokenizer(),
            server_manager=client(Engine([list(each) for each in turns])),
        )  # fmt: skip
        rollout = environment_loop._Rollout(loop, environment, Episode(), {}, [1, 1])
        output = await rollout.run()
        assert output.extra_fields["reward_extra_info"] == {"status": trajectory.status}
        return trajectory.status

    assert asyncio.run(play()) == status


@pytest.mark.parametrize(
    ("ids", "max_model_len", "ending"),
    [
        ([1] * 15 + [END], None, "completed"),
        ([1] * 16, None, "truncated"),
        ([1] * 15, None, "completed"),
        ([1] * 10, 12, "truncated"),  # two tokens of prompt: the engine had room for no more
        ([1] * 9, 12, "completed"),
    ],
)
def test_a_stock_loops_ending_is_that_of_its_last_turn(ids: list[int], max_model_len: int | None, ending: str) -> None:
    async def play() -> str:
        trajectory = opened()
        await client(Engine([ids]), max_model_len).generate("r", prompt_ids=[1, 1], sampling_params={})
        assert trajectory.status is None
        return trajectory.ending

    assert asyncio.run(play()) == ending


@pytest.mark.parametrize(
    ("agent_name", "text", "is_cut"),
    [
        ("tool_agent", "<tool_call>{call}</tool_call>", True),
        ("tool_agent", "<tool_call>no call</tool_call>", False),
        ("tool_agent", "the answer", False),
        ("single_turn_agent", "<tool_call>{call}</tool_call>", False),
    ],
)
def test_a_stock_tool_loop_that_ends_with_a_call_is_cut(agent_name: str, text: str, is_cut: bool) -> None:
    text = text.replace("{call}", '{"name": "look", "arguments": {}}')
    tokenizer = SimpleNamespace(decode=lambda ids: text)
    assert asyncio.run(is_unanswered(agent_name, [1], "hermes", tokenizer)) == is_cut


@pytest.mark.parametrize(
    ("row", "prompt_id"),
    [
        ({"extra_info": {"task_id": "t", "index": 0}, "index": 3}, "t"),
        ({"extra_info": {"index": 0}, "index": 3}, "0"),
        ({"index": 0}, "0"),
        ({}, "u"),
    ],
)
def test_a_prompt_is_known_by_its_index_also_the_first_one(row: dict[str, Any], prompt_id: str) -> None:
    assert _opened(False, {"uid": "u", "session_id": 1, "global_steps": 1, **row}).prompt_id == prompt_id
