"""Puts generations and observations in order and makes turns of them, for every format.

Answers to parallel calls become one return; a return that no generation follows is left out, as the records ask for;
where the size of each call's context is known, payloads are differences of contexts and thereby exact. Policy versions
are kept for turns that are covered by them whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from libra.core.records import ToolReturn, ToolStatus, Turn, VersionSpan
from libra.workloads.importers.base import Findings, RowError, clean
from libra.workloads.importers.status import worst


@dataclass
class _Step:
    generated_tok: int
    context_tok: int | None
    spans: list[VersionSpan | None]
    returns: list[ToolReturn] = field(default_factory=list)
    hows: list[str] = field(default_factory=list)

    @property
    def known_spans(self) -> tuple[VersionSpan, ...]:
        return tuple(span for span in self.spans if span) if all(self.spans) else ()


class TurnBuilder:
    """`generate` and `observe` in the order of the dump, then `build`."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._steps: list[_Step] = []

    def generate(self, num_tok: int, context_tok: int | None = None, version: int | None = None) -> None:
        """A generation given a context of `context_tok`, where the dump knows it. Two in a row are one turn.

        `version` is the policy's; a negative one is unknown.
        """
        if num_tok < 0 or (context_tok or 0) < 0:
            raise RowError(f"negative token count in turn {len(self._steps)}")
        span = None if version is None or version < 0 else VersionSpan(version, num_tok)
        last = self._steps[-1] if self._steps else None
        if last and not last.returns:
            last.generated_tok += num_tok
            last.spans.append(span)
            self._findings.count("joined")
        else:
            self._steps.append(_Step(num_tok, context_tok, [span]))

    def add(self, num_tok: int) -> None:
        """More tokens of the last generation: another call of the same answer."""
        assert self._steps, "after generate"
        self._steps[-1].generated_tok += num_tok
        self._steps[-1].spans.append(None)

    def observe(
        self, tool: str, payload_tok: int, status: ToolStatus, latency_s: float | None = None, *, how: str = ""
    ) -> None:
        """A return to the last generation. A payload below 0 counts 0; a time that is no time is unknown.

        `how` is what told the status, a key of `report.COUNTED` or `report.SOURCES`; counted if the return is kept.
        """
        if not self._steps:
            raise RowError(f"a return of {tool!r} stands before the first generation")
        if latency_s is not None and not 0 <= latency_s < math.inf:
            self._findings.count("bad_latency")
            latency_s = None
        payload_tok = self._at_least_0(payload_tok)
        self._steps[-1].hows.append(how)
        self._steps[-1].returns.append(ToolReturn(clean(tool) or "tool", payload_tok, status, latency_s))

    @property
    def num_turns(self) -> int:
        return len(self._steps)

    @property
    def is_waiting(self) -> bool:
        """A return came last, and no generation after it."""
        return bool(self._steps and self._steps[-1].returns)

    @property
    def is_exact(self) -> bool:
        """The contexts of all generations are known."""
        return bool(self._steps) and all(step.context_tok is not None for step in self._steps)

    def build(self) -> tuple[Turn, ...]:
        """The turns; raises `RowError` when there is none."""
        if not self._steps:
            raise RowError("no turns: nothing was generated")
        *inner, last = self._steps
        if last.returns:
            self._findings.count("trailing")
        for how in (how for step in inner for how in step.hows if how):
            self._findings.count(how)
        pairs = zip(inner, self._steps[1:], strict=True)
        turns = [Turn(step.generated_tok, self._merged(step, after), step.known_spans) for step, after in pairs]
        return (*turns, Turn(last.generated_tok, None, last.known_spans))

    def _merged(self, step: _Step, after: _Step) -> ToolReturn:
        returns = step.returns
        payload_tok = sum(each.payload_tok for each in returns)
        if self.is_exact:
            assert step.context_tok is not None and after.context_tok is not None, "is_exact"
            payload_tok = self._at_least_0(after.context_tok - step.context_tok - step.generated_tok)
        if len(returns) == 1:
            return ToolReturn(returns[0].tool, payload_tok, returns[0].status, returns[0].latency_s)
        self._findings.count("parallel")
        times = [each.latency_s for each in returns]
        longest_s = None if None in times else max(t for t in times if t is not None)
        return ToolReturn(returns[0].tool, payload_tok, worst(each.status for each in returns), longest_s)

    def _at_least_0(self, payload_tok: int) -> int:
        if payload_tok < 0:
            self._findings.count("negative_payload")
        return max(payload_tok, 0)
