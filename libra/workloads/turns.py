"""Splits a trajectory's tokens into turns and tool returns: generate, call a tool, read its payload, until all is used.

Draws are taken in fixed chunks of turns for the whole group, so turn `k` of a sample meets the same draws whatever
the lengths are (common random numbers also between settings of a sweep).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from libra.core.records import ToolReturn, ToolStatus, Turn
from libra.core.registry import Options

CHUNK = 32
"""Turns drawn at a time: enough for most groups at once, and cheap where few are used."""
FAILED_PAYLOAD = 1.5
FAILED_TIME = 2.0
"""A failed call returns a longer payload (trace back, usage text) and takes longer; both factors are assumed."""
LARGE_PAYLOAD_SHARE = 0.1
LARGE_PAYLOAD_Z = 1.2815515655446004
"""With `tool_signal`, the largest tenth of payloads (standard normal quantile 0.9) are signals too."""


class TurnOptions(Options):
    """Turns and tools. Medians and log standard deviations of lognormals; `tools` are called equally often."""

    turn_tok: int = Field(gt=0)
    turn_sigma: float = Field(default=0.88, gt=0, le=3)
    payload_tok: int = Field(gt=0)
    payload_sigma: float = Field(gt=0, le=3)
    payload_cap_tok: int = Field(gt=0)
    fail_prob: float = Field(ge=0, le=1)
    tools: tuple[str, ...] = Field(min_length=1)
    tool_s: float = Field(gt=0)
    tool_sigma: float = Field(gt=0, le=3)
    tool_cap_s: float = Field(gt=0)
    tool_signal: float = Field(default=0.0, ge=0, le=1)


@dataclass(frozen=True)
class Draws:
    """Arrays (samples, turns); `is_signal` marks returns that announce more work, where the world has such a thing."""

    generated_tok: NDArray[np.int64]
    payload_tok: NDArray[np.int64]
    latency_s: NDArray[np.float64]
    is_failed: NDArray[np.bool_]
    is_signal: NDArray[np.bool_]
    tool: NDArray[np.int64]

    def followed_by(self, other: Draws) -> Draws:
        mine, theirs = vars(self), vars(other)
        return Draws(**{name: np.concatenate((mine[name], theirs[name]), axis=1) for name in mine})


def single_turns(wanted_tok: NDArray[np.float64], limit_tok: int) -> list[tuple[Turn, ...]]:
    """One generation each, of the wanted length or the limit."""
    return [(Turn(tok),) for tok in _whole(np.minimum(wanted_tok, limit_tok)).tolist()]


def multi_turns(
    options: TurnOptions, wanted_tok: NDArray[np.float64], limit_tok: int, rng: np.random.Generator
) -> tuple[list[tuple[Turn, ...]], NDArray[np.bool_]]:
    """Turns of each sample, and whether it is cut at the limit.

    `wanted_tok` (samples) are tokens after the prompt without a limit. Generated and payload tokens sum to the wanted
    number or the limit, exactly; with `tool_signal` > 0 to what becomes of it (see `_final_tok`).
    """
    draws = _draw(options, len(wanted_tok), rng)
    final = _final_tok(options, draws, wanted_tok, limit_tok)
    # The last turn is kept in reserve: a final turn may follow the return that would use everything up.
    while (_used_tok(draws)[:, -2] < final).any():
        draws = draws.followed_by(_draw(options, len(wanted_tok), rng))
        final = _final_tok(options, draws, wanted_tok, limit_tok)
    budgets = _whole(final)
    is_cut = wanted_tok > limit_tok if options.tool_signal == 0 else budgets == limit_tok
    return _split(options, draws, budgets), is_cut


def signal_share(options: TurnOptions) -> float:
    """Probability that a return is a signal: failed, or of the largest tenth of payloads."""
    return 1 - (1 - options.fail_prob) * (1 - LARGE_PAYLOAD_SHARE)


def _draw(options: TurnOptions, num_samples: int, rng: np.random.Generator) -> Draws:
    z_turn, z_payload, z_time = rng.standard_normal((3, num_samples, CHUNK))
    u_fail, u_tool = rng.random((2, num_samples, CHUNK))
    is_failed = u_fail < options.fail_prob
    payload = options.payload_tok * np.exp(options.payload_sigma * z_payload) * np.where(is_failed, FAILED_PAYLOAD, 1)
    latency_s = options.tool_s * np.exp(options.tool_sigma * z_time) * np.where(is_failed, FAILED_TIME, 1)
    return Draws(
        generated_tok=_whole(options.turn_tok * np.exp(options.turn_sigma * z_turn)),
        payload_tok=_whole(np.minimum(payload, options.payload_cap_tok)),
        latency_s=np.minimum(np.round(latency_s, 3), options.tool_cap_s),  # milliseconds: shorter to store
        is_failed=is_failed,
        is_signal=is_failed | (z_payload > LARGE_PAYLOAD_Z),
        tool=(u_tool * len(options.tools)).astype(np.int64),
    )


def _used_tok(draws: Draws) -> NDArray[np.int64]:
    return np.cumsum(draws.generated_tok + draws.payload_tok, axis=1)


def _final_tok(
    options: TurnOptions, draws: Draws, wanted_tok: NDArray[np.float64], limit_tok: int
) -> NDArray[np.float64]:
    """Tokens after the prompt that each sample comes to: the wanted number or the limit, unless tools are signals.

    With s, a call multiplies what remains, its own payload included: by (1 + s) / (1 + s q) if its return is a signal
    (probability q) and by 1 / (1 + s q) otherwise, so a signal lengthens the rest by 1 + s and the expectation does not
    move. Where the limit allows less, the first factor is what it allows, and the second comes as much nearer to 1:
    the number is a martingale, and its mean the same as without signals.
    """
    final = np.minimum(wanted_tok, limit_tok)
    share = signal_share(options)
    if options.tool_signal == 0 or share == 1:
        return final
    longer = (1 + options.tool_signal) / (1 + options.tool_signal * share)
    # Before the payload is read: whether a call happens must not depend on how large its payload is.
    used_at_call = _used_tok(draws) - draws.payload_tok
    for used, is_signal in zip(used_at_call.T, draws.is_signal.T, strict=True):
        is_open = used < final
        if not is_open.any():
            break
        left = np.where(is_open, final - used, 1.0)
        up = np.minimum(longer, (limit_tok - used) / left)
        factor = np.where(is_signal, up, (1 - share * up) / (1 - share))
        final = np.where(is_open, used + left * factor, final)
    return final


def _split(options: TurnOptions, draws: Draws, budgets: NDArray[np.int64]) -> list[tuple[Turn, ...]]:
    last = np.argmax(_used_tok(draws) >= budgets[:, None], axis=1)
    return [_turns(options, draws, row, int(budgets[row]), int(last[row])) for row in range(len(budgets))]


def _turns(options: TurnOptions, draws: Draws, row: int, budget: int, last: int) -> tuple[Turn, ...]:
    """Turn `last` or its payload reaches the budget. A payload that would leave no final turn is shortened for it."""
    generated = draws.generated_tok[row, : last + 2].tolist()
    payload = draws.payload_tok[row, : last + 1].tolist()
    left = budget - sum(generated[:last]) - sum(payload[:last])
    final_tok, num_returns = left, last
    if left - generated[last] > generated[last + 1]:
        final_tok, num_returns = generated[last + 1], last + 1
        payload[last] = left - generated[last] - final_tok
    latency_s = draws.latency_s[row, :num_returns].tolist()
    is_failed = draws.is_failed[row, :num_returns].tolist()
    tools = draws.tool[row, :num_returns].tolist()
    turns = [
        Turn(tok, ToolReturn(options.tools[tool], size, _status(failed, time_s, cap_s), time_s))
        for tok, tool, size, failed, time_s, cap_s in zip(
            generated, tools, payload, is_failed, latency_s, repeat(options.tool_cap_s), strict=False
        )
    ]
    return (*turns, Turn(final_tok))


def _status(is_failed: bool, latency_s: float, cap_s: float) -> ToolStatus:
    if latency_s >= cap_s:
        return "timeout"
    return "error" if is_failed else "ok"


def _whole(tok: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(np.rint(tok), 1).astype(np.int64)
