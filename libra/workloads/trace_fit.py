"""Fits a trace to the model and the simulator: lengths under the limit, tool times known and capped, no empty turn.

Every change is counted and said in a warning. Version spans are dropped: they name policies of another run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

import msgspec

from libra.core.errors import TraceError
from libra.core.records import ToolReturn, Trajectory, Turn

OverLimit = Literal["error", "truncate", "shorten_prompt", "rescale", "drop"]

MIN_PROMPT_TOK = 256
"""What `shorten_prompt` leaves of a prompt at least: a task without its system prompt and its files (assumed)."""

Rows = tuple[Trajectory, ...]


@dataclass
class Cleaning:
    """Works on the trajectories of one trace and collects `warnings`. `where` names the trace in errors."""

    where: str
    limit_tok: int
    warnings: list[str] = field(default_factory=list)

    def drop_short(self, rows: Rows, min_turns: int) -> Rows:
        """Trajectories of `min_turns` turns or more. Raises `TraceError` when none is left."""
        kept = tuple(row for row in rows if len(row.turns) >= min_turns)
        if len(kept) < len(rows):
            self.warnings.append(f"{_of(len(rows) - len(kept), rows)} left out: fewer than {min_turns} turns.")
        return self._some(kept, f"no trajectory has {min_turns} turns", "lower `min_turns`")

    def fill(self, rows: Rows, default_tool_s: float, cap_s: float) -> Rows:
        """Known tool times up to `cap_s`, at least one token in every prompt and turn, no version spans."""
        returns = [turn.tool for row in rows for turn in row.turns if turn.tool]
        num_unknown = sum(tool.latency_s is None for tool in returns)
        num_capped = sum((tool.latency_s or 0) > cap_s for tool in returns)
        num_empty = sum(turn.generated_tok == 0 for row in rows for turn in row.turns)
        if num_unknown:
            self.warnings.append(
                f"{num_unknown:,} of {len(returns):,} tool returns have no time: {default_tool_s:g} s is assumed."
            )
        if num_capped:
            self.warnings.append(f"{num_capped:,} of {len(returns):,} tool times are capped at {cap_s:g} s.")
        if num_empty:
            self.warnings.append(f"{num_empty:,} turns without a generated token count as one token.")
        num_bare = sum(row.prompt_tok == 0 for row in rows)
        if num_bare:
            self.warnings.append(f"{num_bare:,} prompts without a token count as one token.")

        def filled(turn: Turn) -> Turn:
            tool = turn.tool
            if tool:
                latency_s = default_tool_s if tool.latency_s is None else tool.latency_s
                tool = msgspec.structs.replace(tool, latency_s=min(latency_s, cap_s))
            return Turn(max(turn.generated_tok, 1), tool)

        return tuple(
            msgspec.structs.replace(row, prompt_tok=max(row.prompt_tok, 1), turns=tuple(map(filled, row.turns)))
            for row in rows
        )

    def fit(self, rows: Rows, over_limit: OverLimit) -> Rows:
        """Trajectories within the limit. Raises `TraceError` if some are not (`error`), or none is left."""
        too_long = [row for row in rows if row.total_tok > self.limit_tok]
        if not too_long:
            return rows
        match over_limit:
            case "error":
                raise self._too_long(rows, too_long)
            case "truncate":
                return self._truncate(rows, len(too_long))
            case "shorten_prompt":
                return self._shorten_prompts(rows, len(too_long))
            case "rescale":
                return self._rescale(rows)
            case "drop":
                self.warnings.append(f"{_of(len(too_long), rows)} left out: beyond {self.limit_tok:,} tokens.")
                kept = tuple(row for row in rows if row.total_tok <= self.limit_tok)
                return self._some(kept, "every trajectory is beyond the limit", "truncate or rescale them")
        assert_never(over_limit)

    def _too_long(self, rows: Rows, too_long: Sequence[Trajectory]) -> TraceError:
        longest = max(row.total_tok for row in too_long)
        return TraceError(
            f"{len(too_long):,} of {len(rows):,} trajectories are longer than the model's limit of "
            f"{self.limit_tok:,} tokens; the longest has {longest:,}",
            where=self.where,
            mend="set `over_limit` to truncate (cut them and mark them so), shorten_prompt (keep the turns and cut the "
            "prompt), rescale (shrink all lengths alike) or drop (leave them out), or choose a model with a longer "
            "context limit",
        )

    def _truncate(self, rows: Rows, num_too_long: int) -> Rows:
        kept = tuple(cut for row in rows if (cut := truncated(row, self.limit_tok)))
        num_lost = len(rows) - len(kept)
        if num_too_long > num_lost:
            cut_ones = _of(num_too_long - num_lost, rows)
            self.warnings.append(f"{cut_ones} cut at {self.limit_tok:,} tokens and marked truncated.")
        if num_lost:
            self.warnings.append(f"{_of(num_lost, rows)} left out: the prompt alone fills the context.")
        return self._some(kept, "every prompt alone fills the context", "rescale them, or choose another model")

    def _shorten_prompts(self, rows: Rows, num_too_long: int) -> Rows:
        """Cut prompts as far as needed; what is still too long with `MIN_PROMPT_TOK` of prompt is truncated."""
        self.warnings.append(f"{_of(num_too_long, rows)} too long: their prompts are shortened, their turns are kept.")
        shortened = tuple(_with_short_prompt(row, self.limit_tok) for row in rows)
        num_still = sum(row.total_tok > self.limit_tok for row in shortened)
        return self._truncate(shortened, num_still) if num_still else shortened

    def _rescale(self, rows: Rows) -> Rows:
        # Each count is rounded down, but the prompt and every turn keep a token: that many are kept free.
        room = self.limit_tok - 1 - max(len(row.turns) for row in rows)
        factor = room / max(row.total_tok for row in rows)
        if factor <= 0:
            raise TraceError(
                "some trajectory has more turns than the limit has tokens",
                where=self.where,
                value=self.limit_tok,
                mend="truncate or drop instead, or choose a model with a longer context limit",
            )
        self.warnings.append(f"All lengths are multiplied by {factor:.3f}, so that the longest fits the limit.")
        return tuple(_scaled(row, factor) for row in rows)

    def _some(self, rows: Rows, what: str, mend: str) -> Rows:
        if not rows:
            raise TraceError(f"nothing to replay: {what}", where=self.where, mend=mend)
        return rows


def truncated(row: Trajectory, limit_tok: int) -> Trajectory | None:
    """The part within the limit, marked truncated; the row itself if it fits; None if no generated token would.

    A payload that does not fit ends the trajectory before it, as an engine would that refuses the next request.
    """
    if row.total_tok <= limit_tok:
        return row
    left, turns = limit_tok - row.prompt_tok, []
    for turn in row.turns:
        if left <= 0:
            break
        generated_tok = min(turn.generated_tok, left)
        left -= generated_tok + (turn.tool.payload_tok if turn.tool else 0)
        turns.append(Turn(generated_tok, turn.tool))
    if not any(turn.generated_tok for turn in turns):
        return None
    turns[-1] = Turn(turns[-1].generated_tok)
    return msgspec.structs.replace(row, turns=tuple(turns), status="truncated")


def _with_short_prompt(row: Trajectory, limit_tok: int) -> Trajectory:
    rest_tok = row.total_tok - row.prompt_tok
    prompt_tok = min(row.prompt_tok, max(MIN_PROMPT_TOK, limit_tok - rest_tok))
    return row if prompt_tok == row.prompt_tok else msgspec.structs.replace(row, prompt_tok=prompt_tok)


def _scaled(row: Trajectory, factor: float) -> Trajectory:
    turns = tuple(Turn(max(int(turn.generated_tok * factor), 1), _scaled_tool(turn.tool, factor)) for turn in row.turns)
    return msgspec.structs.replace(row, prompt_tok=max(int(row.prompt_tok * factor), 1), turns=turns)


def _scaled_tool(tool: ToolReturn | None, factor: float) -> ToolReturn | None:
    return tool and msgspec.structs.replace(tool, payload_tok=int(tool.payload_tok * factor))


def _of(number: int, rows: Rows) -> str:
    return f"{number:,} of {len(rows):,} trajectories {'is' if number == 1 else 'are'}"
