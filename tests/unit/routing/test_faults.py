"""Faults 15 to 20 of the authors' released code: what a right router does instead."""

from __future__ import annotations

import pytest

from libra.core.commands import Place, Why
from libra.routing.cmlfq import CMlfq, state_of
from libra.routing.sample import WINDOW
from tests.unit.routing.scene import Scene


def test_fault_15_one_observation_is_not_enough() -> None:
    scene = Scene(CMlfq())
    scene.history([30000] * 3)
    scene.start(0)
    assert scene.tool(0, 1000) == Place(0, 0, why=Why("none", bucket=0))


def test_fault_15_a_thin_prompt_does_not_hide_what_all_prompts_know() -> None:
    scene = Scene(CMlfq())
    scene.history([9000] * 8)
    scene.start(50, "thin")
    scene.tool(50, 1000)
    scene.end(50, 10000)
    scene.start(0, "thin")
    why = scene.tool(0, 1000).why
    assert why and (why.level, why.evidence, why.bucket) == ("shared-prefix", 9, 1)


def test_fault_15_a_missed_first_state_falls_back_to_the_remaining_length_not_the_total() -> None:
    scene = Scene(CMlfq())
    scene.history([12500] * 4, context_tok=11000, tool="bash")
    scene.start(0)
    # 1,500 tokens were left at this point; the total on top of the context would be 15,500 and bucket 2.
    assert scene.tool(0, 2000, tool="never seen").why == Why("prompt", 3500, 3500, 4, 0)


def test_fault_16_after_a_drift_mean_and_p90_agree_again() -> None:
    scene = Scene(CMlfq())
    scene.history([2000] * 1000)
    scene.history([21000] * WINDOW, first=5000)
    scene.start(0)
    # An all-time mean would be 3,100 (bucket 0) against a P90 of 21,000 (bucket 2): frozen.
    assert scene.tool(0, 1000) == Place(0, 3, why=Why("prefix", 21000, 21000, WINDOW, 2))


def test_fault_17_the_bucket_is_that_of_context_and_remaining() -> None:
    scene = Scene(CMlfq())
    scene.history([29000] * 4, context_tok=28000)
    scene.start(0)
    # 1,000 tokens are left: alone they would name bucket 0. The context counts, so bucket 2 it is.
    assert scene.tool(0, 28000, payload_tok=100).why == Why("prefix", 29000, 29000, 4, 2)


def test_fault_17_nothing_is_sent_below_its_context() -> None:
    scene = Scene(CMlfq())
    scene.history([30000] * 4, context_tok=1000)
    scene.start(0)
    assert scene.tool(0, 1000).instance == 3
    for number in range(200, 204):
        scene.start(number, "q")
        scene.tool(number, 1000)
        scene.tool(number, 1100, tool="submit")
        scene.end(number, 1200)
    assert scene.tool(0, 28000, tool="submit").instance == 3


def test_fault_18_status_is_the_typed_result_not_the_text() -> None:
    assert state_of("pytest: 0 errors, 12 passed", 10, "ok").endswith(":ok")
    assert state_of("command not found", 10, "error").endswith(":error")
    assert len({state_of("bash", 10, status) for status in ("ok", "error", "timeout", "unknown")}) == 4


@pytest.mark.parametrize(("share", "instance"), [(0.02, 0), (0.0, 3)])
def test_fault_19_a_move_must_be_worth_its_price(share: float, instance: int) -> None:
    scene = Scene(CMlfq(min_remaining_share=share))
    scene.history([28100] * 4, context_tok=28000)
    scene.start(0)
    # 100 tokens are left after 28,000: moving costs a re-prefill of 28,000 for the sake of 100.
    assert scene.tool(0, 28000).instance == instance


def test_fault_20_the_tree_survives_weight_syncs() -> None:
    scene = Scene(CMlfq())
    scene.history([30000] * 4)
    for step in range(3):
        scene.sync(step)
    scene.start(0)
    assert scene.tool(0, 1000).why == Why("prefix", 30000, 30000, 4, 2)
