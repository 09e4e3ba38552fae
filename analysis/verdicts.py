"""Every claim of the paper judged by what the store holds, in the sections of the claims file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import get_args

import pandas as pd

from analysis.claim_model import Claim, Judge
from analysis.claims import Measurement, Verdict, Word, judge, measure

Judged = tuple[Claim, Verdict]

WORDS: tuple[Word, ...] = get_args(Word)
PAPER_CLUSTER = "a800x48"
"""A live run counts as `live-48gpu` only there: the paper's own scale."""

SECTIONS: tuple[tuple[str, str], ...] = (
    ("Setup", r"setup-"),
    ("Motivation", r"tail-share|length-spread|growth|drift|static-split|example|tp-study"),
    ("Time", r".*-(hours|hours-to-reward)$|.*time-to-reward|r2e-step|r2e-tokens|r2e-mean|r2e-throughput|"
     r"search-tokens|dapo-libra-if"),
    ("End-to-end throughput", r"headline|search|dapo|r2e|digest"),
    ("Ablation on R2E-Gym", r"ablation"),
    ("Routing on Search-R1", r"routing"),
    ("Cost estimate and overheads", r"mape|planner|migration|switch|transition|kv-"),
)  # fmt: skip
"""Section and the ids (matched from the start) that belong to it; the first match counts."""

ORDER = ("End-to-end throughput", "Ablation on R2E-Gym", "Routing on Search-R1", "Motivation", "Time",
         "Cost estimate and overheads", "Other", "Setup")  # fmt: skip
"""As a reader wants them: the headline first, conditions last."""


def judge_all(table: pd.DataFrame, claims: Iterable[Claim]) -> list[Judged]:
    """Claims with their verdicts, in the order given.

    `table` is `analysis.load.metrics_table` of comparable cells: a study in two lengths would be ambiguous.
    """
    by_judge: dict[Judge, pd.DataFrame] = {"sim": table[table["backend"] == "sim"]}
    live = table[table["backend"] == "live"]
    for name, rows in (("live-48gpu", live[live["cluster"] == PAPER_CLUSTER]), ("live", live)):
        if not rows.empty:
            by_judge[name] = rows  # type: ignore[index]
    return [(claim, judge(claim, _measured(claim, by_judge))) for claim in claims]


def _measured(claim: Claim, by_judge: dict[Judge, pd.DataFrame]) -> dict[Judge, Measurement | str]:
    if claim.experiment is None:
        return {}
    return {name: measure(claim.experiment, rows) for name, rows in by_judge.items() if name in claim.judged_by}


def count(judged: Iterable[Judged]) -> dict[Word, int]:
    """How many verdicts of each word; settings, which nobody judges, are left out."""
    found = [verdict.word for claim, verdict in judged if claim.kind != "setup"]
    return {word: found.count(word) for word in WORDS}


def section_of(claim: Claim) -> str:
    """Section of a claim; "Other" for an id that no section knows."""
    return next((name for name, ids in SECTIONS if re.match(ids, claim.id)), "Other")


def sections(judged: Sequence[Judged]) -> dict[str, list[Judged]]:
    """Judged claims by section, sections in reading order, claims in file order."""
    found = {name: [(claim, verdict) for claim, verdict in judged if section_of(claim) == name] for name in ORDER}
    return {name: rows for name, rows in found.items() if rows}


def value_text(verdict: Verdict) -> str:
    """Our value in the claim's unit with its interval, `1.21 [1.15, 1.27] x`; "" where nothing was measured."""
    found = verdict.measurement
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"{number(found.value)} {found.unit}"
    return f"{number(found.value)} [{number(found.low)}, {number(found.high)}] {found.unit}"


def number(value: float) -> str:
    """Three significant digits, no exponent for everyday sizes, none of a false zero."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
