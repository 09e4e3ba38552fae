"""Splitting into turns: sums, statuses, and the exact effect of tool signals."""

from __future__ import annotations

import numpy as np
import pytest

from libra.workloads.turns import CHUNK, TurnOptions, multi_turns, signal_share, single_turns


def options(**changes: object) -> TurnOptions:
    base = {
        "turn_tok": 100,
        "payload_tok": 50,
        "payload_sigma": 1.0,
        "payload_cap_tok": 1_000,
        "fail_prob": 0.2,
        "tools": ("bash", "python"),
        "tool_s": 1.5,
        "tool_sigma": 1.0,
        "tool_cap_s": 10.0,
    }
    return TurnOptions.model_validate(base | changes)


def total(turns) -> int:
    return sum(turn.generated_tok + (turn.tool.payload_tok if turn.tool else 0) for turn in turns)


def test_tokens_add_up_to_what_was_wanted_or_the_limit() -> None:
    wanted = np.array([1.0, 1.4, 2.0, 99.0, 2_000.0, 7_999.0, 8_000.4, 50_000.0])
    turns, is_cut = multi_turns(options(), wanted, 8_000, np.random.default_rng(0))
    assert [total(row) for row in turns] == [1, 1, 2, 99, 2_000, 7_999, 8_000, 8_000]
    assert is_cut.tolist() == [False] * 6 + [True, True]


def test_every_turn_but_the_last_ends_in_a_tool_and_none_is_empty() -> None:
    turns, _ = multi_turns(options(), np.geomspace(1, 20_000, 400), 40_000, np.random.default_rng(1))
    for row in turns:
        assert all(turn.tool and turn.tool.payload_tok >= 1 for turn in row[:-1])
        assert row[-1].tool is None
        assert all(turn.generated_tok >= 1 for turn in row)


def test_more_turns_than_one_chunk_are_drawn_when_needed() -> None:
    turns, _ = multi_turns(options(), np.array([40_000.0]), 40_000, np.random.default_rng(2))
    assert len(turns[0]) > 3 * CHUNK


def test_a_longer_sample_begins_like_a_shorter_one() -> None:
    (short,), _ = multi_turns(options(), np.array([3_000.0]), 40_000, np.random.default_rng(3))
    (long,), _ = multi_turns(options(), np.array([9_000.0]), 40_000, np.random.default_rng(3))
    assert long[: len(short) - 2] == short[:-2]


def test_statuses_times_and_caps() -> None:
    turns, _ = multi_turns(options(), np.full(400, 10_000.0), 40_000, np.random.default_rng(4))
    returns = [turn.tool for row in turns for turn in row[:-1]]
    assert {r.status for r in returns} == {"ok", "error", "timeout"}
    assert all((r.status == "timeout") == (r.latency_s == 10.0) for r in returns)
    assert max(r.payload_tok for r in returns) == 1_000
    assert {r.tool for r in returns} == {"bash", "python"}
    seconds = {status: np.median([r.latency_s for r in returns if r.status == status]) for status in ("ok", "error")}
    assert seconds["ok"] == pytest.approx(1.45, rel=0.05)  # a little below the median: time-outs are apart
    assert seconds["error"] == pytest.approx(2.7, rel=0.05)
    failed = np.mean([r.status != "ok" for r in returns])
    assert failed == pytest.approx(0.2 + 0.8 * 0.029, abs=0.01)  # P(z > ln(10 / 1.5)) = 0.029


def test_single_turns_are_limited_too() -> None:
    assert [total(row) for row in single_turns(np.array([0.2, 7.0, 900.0]), 100)] == [1, 7, 100]


@pytest.mark.parametrize("signal", [0.3, 1.0])
def test_a_signal_changes_no_mean_and_no_limit(signal: float) -> None:
    rng = np.random.default_rng(5)
    wanted = np.exp(8 + rng.standard_normal(20_000))
    turns, is_cut = multi_turns(options(tool_signal=signal), wanted, 20_000, rng)
    got = np.array([total(row) for row in turns])
    limited = np.minimum(wanted, 20_000)
    assert got.max() == 20_000 and (is_cut == (got == 20_000)).all()
    error = (got - limited).std() / np.sqrt(len(got))
    assert abs(got.mean() - limited.mean()) < 4 * error


@pytest.mark.parametrize("signal", [0.5, 1.0])
def test_a_signal_lengthens_the_rest_by_its_factor(signal: float) -> None:
    rng = np.random.default_rng(6)
    table = options(tool_signal=signal, payload_tok=1, payload_sigma=0.01, turn_sigma=0.01, tool_cap_s=1e9)
    # The budget of a second turn differs by the factor of the first return only: 1 + s against 1.
    turns, _ = multi_turns(table, np.full(20_000, 250.0), 10**9, rng)
    left = {True: [], False: []}
    for row in turns:
        assert row[0].tool is not None
        left[row[0].tool.status == "error"].append(total(row) - row[0].generated_tok)
    mean = 1 + signal * signal_share(table)
    quiet = (1 + signal * 0.1) / mean  # unfailed returns hold a tenth of large payloads, which are signals too
    assert np.mean(left[True]) == pytest.approx(150 * (1 + signal) / mean, rel=0.02)
    assert np.mean(left[False]) == pytest.approx(150 * quiet, rel=0.02)
