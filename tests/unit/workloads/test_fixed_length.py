"""Trajectories that are all alike."""

from __future__ import annotations

import pytest

from libra.core.errors import ConfigError
from libra.core.registry import parse_options
from libra.workloads.base import Workload
from libra.workloads.fixed_length import WORKLOAD, FixedLength


def build(**options: object) -> FixedLength:
    return WORKLOAD.build(parse_options(WORKLOAD.options, options, "fixed-length"), 0, 40_960)


def test_every_trajectory_has_the_length() -> None:
    workload = build(length_tok=1_000, prompt_tok=100, turns=7, tool_s=2.0)
    assert isinstance(workload, Workload)
    rows = workload.group(0) + workload.group(9) + workload.profile(1)
    assert {t.total_tok for t in rows} == {1_000}
    assert {t.prompt_tok for t in rows} == {100}
    assert {t.tool_s for t in rows} == {12.0}
    assert [turn.generated_tok for turn in rows[0].turns] == [129, 129, 129, 129, 128, 128, 128]
    assert [turn.tool is None for turn in rows[0].turns] == [False] * 6 + [True]


def test_a_single_turn_by_default_and_the_batch_asked_for() -> None:
    workload = build(batch=48)
    assert len(workload.group(0)[0].turns) == 1
    assert (workload.batch, workload.group_size) == (48, 16)
    assert len({t.prompt_id for t in workload.group(0) + workload.group(1) + workload.profile(2)}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 40}, "no multiple of the group size"),
        ({"length_tok": 50_000}, "beyond the context limit of 40,960"),
        ({"length_tok": 100, "prompt_tok": 99, "turns": 2}, "do not fit"),
    ],
)
def test_settings_that_do_not_work_out_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**options)


def test_parameters_cover_all_options() -> None:
    assert [p.name for p in build().parameters()] == list(WORKLOAD.options.model_fields)
