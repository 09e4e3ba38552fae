from __future__ import annotations

import msgspec
import pytest

from baselines.routers.mlfq import Mlfq
from baselines.routers.oracle import Oracle
from baselines.routers.prompt_history import PromptHistory
from baselines.routers.prompt_history_promote import PromptHistoryPromote
from baselines.routers.turn_index import TurnIndex
from libra.core.commands import Place, Why
from libra.core.errors import ConfigError
from tests.unit.routing.scene import Scene, engine


def test_mlfq_goes_up_one_bucket_a_return_and_never_down() -> None:
    scene = Scene(Mlfq())
    contexts = (3000, 4000, 4001, 5000, 13000, 14000)
    assert scene.start(0).instance == 0
    assert [scene.tool(0, tok).instance for tok in contexts] == [0, 0, 2, 2, 3, 3]


def test_mlfq_needs_two_returns_for_two_buckets() -> None:
    scene = Scene(Mlfq())
    scene.start(0)
    assert [scene.tool(0, 30000).instance for _ in range(3)] == [2, 3, 3]


def test_prompt_history_takes_the_prompt_then_everybody_then_the_smallest() -> None:
    scene = Scene(PromptHistory())
    assert scene.start(0, "p") == Place(0, 0, why=Why(bucket=0))
    scene.history([30000] * 4)
    assert scene.start(1, "p") == Place(1, 3, why=Why("prompt", 30000, 30000, 4, 2))
    assert scene.start(2, "q") == Place(2, 3, why=Why("shared", 30000, 30000, 4, 2))


def test_prompt_history_looks_again_at_each_return() -> None:
    scene = Scene(PromptHistory())
    assert scene.start(0, "p").instance == 0
    scene.history([9000] * 4)
    assert scene.tool(0, 1000).instance == 2


@pytest.mark.parametrize(("router", "instance"), [(PromptHistory, 0), (PromptHistoryPromote, 3)])
def test_only_the_promoting_one_hears_that_the_context_is_past_the_prediction(
    router: type[PromptHistory], instance: int
) -> None:
    scene = Scene(router())
    scene.history([2000] * 4)
    assert scene.start(0).instance == 0
    assert scene.tool(0, 13000).instance == instance


def test_promotion_never_lowers_a_prediction() -> None:
    scene = Scene(PromptHistoryPromote())
    scene.history([30000] * 4)
    assert scene.start(0).instance == 3
    assert scene.tool(0, 1000).instance == 3


def test_turn_index_hears_neither_prompt_nor_tool() -> None:
    scene = Scene(TurnIndex())
    scene.history([30000] * 4)
    scene.start(0, "another")
    place = scene.tool(0, 1000, tool="another", payload_tok=9999, status="timeout")
    assert place == Place(0, 3, why=Why("shared", 30000, 30000, 4, 2))


def test_the_oracle_is_right_from_the_start() -> None:
    scene = Scene(Oracle())
    assert [scene.start(n, oracle=tok).instance for n, tok in enumerate((900, 9000, 30000))] == [0, 2, 3]
    assert scene.tool(2, 1000).instance == 3


def test_the_oracle_follows_a_repartition() -> None:
    scene = Scene(Oracle())
    scene.start(0, oracle=9000)
    scene.allocate((engine(2, 2, 0), engine(3, 4, 1)), (8000, 40960))
    assert scene.tool(0, 1000).instance == 3


def test_the_oracle_refuses_to_guess() -> None:
    with pytest.raises(ConfigError, match="true lengths are withheld"):
        Scene(Oracle()).start(0)


def test_a_why_is_a_value() -> None:
    with pytest.raises(AttributeError):
        Why().bucket = 3  # type: ignore[misc]
    assert msgspec.structs.replace(Why(), bucket=3).bucket == 3
