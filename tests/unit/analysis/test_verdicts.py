"""Claims judged from a store, in their sections."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from analysis.claim_model import CLAIMS_FILE
from analysis.claims import load_claims
from analysis.load import comparable_cells
from analysis.verdicts import ORDER, SECTIONS, WORDS, count, judge_all, number, section_of, sections, value_text

CLAIMS = load_claims()


def verdicts(store):  # type: ignore[no-untyped-def]
    return {claim.id: verdict for claim, verdict in judge_all(comparable_cells(store).table, CLAIMS)}


def ablation(made_cell, libra: tuple[float, ...], uniform: tuple[float, ...], **given):  # type: ignore[no-untyped-def]
    rates = {"libra": libra, "verl-static-uniform": uniform}
    return [
        (made_cell(study="ablation", policy=policy, seed=seed, **given), rate)
        for policy, values in rates.items()
        for seed, rate in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("libra", "word"),
    [
        ((180.0, 181.0, 180.0), "reproduced"),
        ((120.0, 121.0, 120.0), "direction only"),
        ((90.0, 91.0, 90.0), "not reproduced"),
    ],
)
def test_the_ablations_total(made_store, made_cell, libra: tuple[float, ...], word: str) -> None:
    found = verdicts(made_store(ablation(made_cell, libra, (100.0, 100.0, 100.0))))["ablation-total-increase"]
    assert found.word == word
    assert found.judge == "sim"
    assert found.measurement is not None
    assert found.measurement.value == pytest.approx(libra[0] - 100.0, abs=1.0)


def test_one_seed_is_not_judged(made_store, made_cell) -> None:
    found = verdicts(made_store(ablation(made_cell, (180.0,), (100.0,))))["ablation-total-increase"]
    assert (found.word, found.reason) == ("not judged", "1 seed has no interval")
    assert value_text(found) == "80 %"


def test_two_lengths_in_one_store_are_no_ambiguity(made_store, made_cell) -> None:
    short = ablation(made_cell, (100.0, 100.0), (100.0, 100.0), num_steps=2)
    long = ablation(made_cell, (180.0, 180.0), (100.0, 100.0), num_steps=4)
    assert verdicts(made_store([*short, *long]))["ablation-total-increase"].word == "reproduced"


def test_an_empty_store_judges_nothing_and_says_why(made_store) -> None:
    found = verdicts(made_store())
    assert {verdict.word for verdict in found.values()} == {"not judged"}
    assert "the store has no cell of ablation, r2e-gym, libra" in found["ablation-total-increase"].reason


def test_counts_leave_settings_out(made_store) -> None:
    judged = judge_all(comparable_cells(made_store()).table, CLAIMS)
    assert list(count(judged)) == list(WORDS)
    assert sum(count(judged).values()) == sum(claim.kind != "setup" for claim in CLAIMS)


def test_every_claim_has_a_section() -> None:
    assert [claim.id for claim in CLAIMS if section_of(claim) == "Other"] == []
    assert {name for name, _ in SECTIONS} <= set(ORDER)


def test_sections_agree_with_the_headings_of_the_claims_file() -> None:
    """A claim under one heading of the file is in one section of the report, so that nobody has to look twice."""
    text = Path(CLAIMS_FILE).read_text(encoding="utf-8")
    by_id = {claim.id: claim for claim in CLAIMS}
    for part in re.split(r"^# ----- ", text, flags=re.M)[1:]:
        ids = re.findall(r'^id = "([^"]+)"', part, flags=re.M)
        assert len({section_of(by_id[each]) for each in ids}) == 1, part.splitlines()[0]


def test_sections_keep_every_claim(made_store) -> None:
    judged = judge_all(comparable_cells(made_store()).table, CLAIMS)
    assert sorted(claim.id for rows in sections(judged).values() for claim, _ in rows) == sorted(c.id for c in CLAIMS)


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (0.0, 0.08412, 1.0, 63.25, 763.4, 12345.6)] == [
        "0", "0.0841", "1", "63.2", "763", "12,346",
    ]  # fmt: skip
