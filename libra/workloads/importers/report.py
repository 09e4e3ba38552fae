"""What an import says of itself: what was kept, what could not be read, and how each uncertain thing was treated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libra.core.records import Trajectory
from libra.workloads.importers.base import BY_CHARS, Findings

MAX_SHOWN = 12
"""Entries of a list in `lines()`; `--json` gives all."""
COUNTED: Mapping[str, str] = {
    "negative_payload": "{n} negative payloads (context compaction, or text dropped from the history): payload 0",
    "user_reply": "{n} replies of a (simulated) user: kept as returns of a tool named user, status ok",
    "parallel": "{n} turns with several returns (parallel calls): one return, payload summed, worst status, first "
    "tool's name, longest time",
    "trailing": "{n} trajectories end with a return that no generation follows: that return is left out",
    "joined": "{n} generations followed another without a return between: one turn",
    "bad_latency": "{n} impossible tool times (negative or not finite): unknown",
    "bad_reward": "{n} rewards that are no finite number: none",
    "agent": "{n} sub-agents: trajectories of their own; in the parent a return",
    "no_stop": "{n} calls without a recorded end (lost answer): not taken for the end of an episode",
    "open_end": "{n} trajectories stop without an end of turn (lost answers or interrupts): marked aborted",
    "compaction": "{n} contexts were compacted: the episode goes on in a smaller context",
    "branch": "{n} further branches of a conversation (compaction, sub-agents): trajectories of their own, what they "
    "share with an earlier branch is their prompt",
    "mixed_versions": "{n} trajectories were sampled by several policy versions, with unknown bounds: no version spans",
    "spread_time": "{n} trajectories have the sum of their tool times alone: divided evenly among their returns",
    "rejected": "{n} trajectories were finished and then refused by the framework's own filter: kept as completed",
    "masked": "{n} trajectories have no token in their loss mask: the whole response counts as one generation",
    "demonstration": "{n} messages of demonstrations: part of the prompt",
    "invalid_action": "{n} actions were refused as malformed: returns with status error",
}
SOURCES: Mapping[str, str] = {
    "status_exit_code": "exit codes",
    "status_typed": "typed results",
    "status_text": "the text (ok unless it shows a failure)",
}


class Unread(msgspec.Struct, frozen=True):
    """Something that could not be read: file, and line or element where there is one."""

    where: str
    reason: str


class FileReport(msgspec.Struct, frozen=True):
    """One file: its format ("" where unknown), rows decoded and trajectories kept."""

    path: str
    format: str
    num_rows: int
    num_kept: int


class Outcome(msgspec.Struct, frozen=True):
    """Counts over the kept trajectories; a return ends every turn but the last."""

    num_trajectories: int
    num_groups: int
    num_turns: int
    num_returns: int
    num_unknown_latency: int
    num_unknown_status: int
    num_failed: int
    censored: tuple[str, ...]

    @classmethod
    def of(cls, rows: Sequence[Trajectory]) -> Outcome:
        returns = [turn.tool for row in rows for turn in row.turns if turn.tool]
        return cls(
            num_trajectories=len(rows),
            num_groups=len({row.group for row in rows}),
            num_turns=sum(len(row.turns) for row in rows),
            num_returns=len(returns),
            num_unknown_latency=sum(each.latency_s is None for each in returns),
            num_unknown_status=sum(each.status == "unknown" for each in returns),
            num_failed=sum(each.status in ("error", "timeout") for each in returns),
            censored=tuple(f"{row.prompt_id}, sample {row.sample}: {row.status}" for row in rows if row.is_censored),
        )


class ImportReport(msgspec.Struct, frozen=True):
    """See `lines`. `counted` has the keys of `COUNTED` and `SOURCES`."""

    files: tuple[FileReport, ...]
    unread: tuple[Unread, ...]
    duplicates: tuple[str, ...]
    token_counting: str
    outcome: Outcome
    counted: dict[str, int]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """The report as text, the most important first."""
        found = self.outcome
        kept = f"{found.num_trajectories:,} trajectories in {found.num_groups:,} groups, {found.num_turns:,} turns"
        return [
            f"kept: {kept}, {found.num_returns:,} tool returns",
            *self._file_lines(),
            *_listed("could not be read", [f"{each.where}: {each.reason}" for each in self.unread]),
            *_listed("duplicates dropped", self.duplicates),
            *_listed("censored, kept and marked: lengths are lower bounds", found.censored),
            f"tokens: {self.token_counting}",
            *self.facts(),
        ]

    def facts(self) -> list[str]:
        """Sentences for the trace's header."""
        found = self.outcome
        told = [f"{self.counted[key]:,} from {text}" for key, text in SOURCES.items() if self.counted.get(key)]
        status = f"tool statuses: {found.num_failed:,} failed, {found.num_unknown_status:,} unknown"
        status += f"; read: {', '.join(told)}" if told else ""
        latency = f"tool times: {found.num_unknown_latency:,} of {found.num_returns:,} unknown"
        counts = [text.format(n=f"{self.counted[key]:,}") for key, text in COUNTED.items() if self.counted.get(key)]
        return [*([status, latency] if found.num_returns else []), *counts, *self.notes]

    def _file_lines(self) -> list[str]:
        rows = [
            f"{each.path}: {each.format or 'no known format'}, rows {each.num_rows:,}, trajectories {each.num_kept:,}"
            for each in self.files
        ]
        return _listed("files", rows)


def count_method(num_exact: int, estimates: Mapping[str, int], measured: Sequence[tuple[int, int]]) -> str:
    """How tokens were counted: trajectories by estimate, with the error where a dump holds the true number as well."""
    if not estimates:
        return "exact"
    told = {how: f"{how}, error {_error(measured)}" if how == BY_CHARS else how for how in estimates}
    if not num_exact and len(estimates) == 1:
        return next(iter(told.values()))
    exact = [f"{num_exact:,} trajectories exact"] if num_exact else []
    return ", ".join([*exact, *(f"{num:,} {told[how]}" for how, num in estimates.items())])


def _error(measured: Sequence[tuple[int, int]]) -> str:
    errors = [estimated / true - 1 for estimated, true in measured if true > 0]
    if not errors:
        return "unknown"
    low, high = f"{min(errors):+.0%}", f"{max(errors):+.0%}"
    spread = low if low == high else f"{low} to {high}"
    return f"measured on the generated tokens of {len(errors)} of these trajectories: {spread}"


def _listed(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    more = [f"  ... and {len(entries) - MAX_SHOWN:,} more"] if len(entries) > MAX_SHOWN else []
    return [f"{title} ({len(entries):,}):", *(f"  {entry}" for entry in entries[:MAX_SHOWN]), *more]


def counted_of(findings: Findings) -> dict[str, int]:
    """Counts above 0, in the order of the report."""
    return {key: findings.counts[key] for key in (*COUNTED, *SOURCES) if findings.counts[key]}
