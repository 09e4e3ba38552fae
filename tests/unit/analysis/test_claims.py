"""The claims file is whole, quotes are verbatim, derived numbers add up, and verdicts follow the stated rules."""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.claim_model import CLAIMS_FILE, METRIC_UNITS, load_sources
from analysis.claims import Claim, Experiment, Measurement, band, judge, load_claims, measure
from experiments.studies import ablation, end_to_end, motivation, routing
from libra.core.errors import ConfigError
from libra.core.registry import StudyArgs

CLAIMS = load_claims()
BY_ID = {claim.id: claim for claim in CLAIMS}
FACTS = Path(__file__).resolve().parents[4] / "shared" / "facts"
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def numbers_of(claim: Claim) -> list[float]:
    return [number for number in (claim.value, claim.low, claim.high, *claim.values) if number is not None]


def evaluate(text: str) -> float:
    """Value of plain arithmetic; anything else fails the test."""

    def walk(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int | float), ast.dump(node)
        return float(node.value)

    return walk(ast.parse(text, mode="eval").body)


# ---- the file


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_is_whole(claim: Claim) -> None:
    assert claim.source and claim.unit and claim.statement
    assert claim.kind == "derived" or claim.quote, "neither a sentence nor the reason why there is none"
    assert claim.kind == "setup" or (claim.tolerance_reason and claim.metric)
    assert claim.quote_en or not re.search(r"[\u4e00-\u9fff]", claim.quote), "a Chinese sentence needs a translation"
    assert "time_to_reward" not in claim.metric or "sim" not in claim.judged_by
    assert claim.kind == "setup" or "sim" in claim.judged_by or claim.why


def test_ids_are_unique() -> None:
    assert len(BY_ID) == len(CLAIMS)


def test_each_number_is_there_once_a_reading() -> None:
    keys = [
        (c.workload, c.system, c.baseline, c.metric, c.unit, str(c.experiment), *numbers_of(c), c.source)
        for c in CLAIMS
        if c.kind == "reported" and c.experiment
    ]
    assert len(set(keys)) == len(keys)


ASKED = """3.0 2.5 95 3.9 763 423 510 41 115 97 2700 63 80 300 196 209 91.1 65.2 44.8 8.2 17.9 26.7 63.2 80.4 1852 591
430 1220 12.3 1.9 330 733 10.8 3.6 4.4 3.5 454.16 6.35 9.30 3.1 5.9 2.4 5.5"""


def test_the_reported_numbers_are_all_there() -> None:
    present = {number for claim in CLAIMS if claim.kind == "reported" for number in numbers_of(claim)}
    assert {float(number) for number in ASKED.split()} - present == set()


def test_contradictions_and_readings_are_linked() -> None:
    assert BY_ID["search-colocated-ratio"].reading_of == "search-colocated-increase"
    assert "headline-throughput" in BY_ID["search-colocated-increase"].contradicts
    assert "headline-throughput" in BY_ID["headline-time-to-reward"].contradicts
    assert "search-areal-increase" in BY_ID["headline-throughput-best-static"].contradicts
    assert "ablation-cmlfq-increase" in BY_ID["ablation-cmlfq-printed"].contradicts
    assert BY_ID["search-libra-per-gpu"].reading_of == "search-libra"
    assert "dapo-libra-if-equal-tokens" in BY_ID["digest-levels"].contradicts
    assert "setup-tp-study-batch" in BY_ID["growth-rollout"].contradicts


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.kind == "derived"], ids=lambda claim: claim.id)
def test_derived_numbers_add_up(claim: Claim) -> None:
    assert claim.value == pytest.approx(evaluate(claim.arithmetic), rel=0.006), claim.arithmetic


CONSTANTS = {1.0, 100.0, 1000.0, 1024.0, 3600.0, 1e9}
ASSUMED = {"r2e-mean-length-if-32": {32}, "r2e-mean-length-if-48": {48}, "r2e-mean-length-if-64": {64},
           "r2e-mean-length-if-per-gpu": {2048}, "kv-per-token": {40, 8, 128, 2}}  # fmt: skip


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.kind == "derived"], ids=lambda claim: claim.id)
def test_derived_numbers_come_from_the_claims_they_name(claim: Claim) -> None:
    used = {float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e\d+)?", claim.arithmetic)}
    known = {float(number) for name in claim.derived_from for number in numbers_of(BY_ID[name])}
    assert claim.derived_from
    assert used - CONSTANTS - ASSUMED.get(claim.id, set()) <= known


def test_the_ablation_is_consistent_in_absolute_numbers() -> None:
    gains = [BY_ID[f"ablation-{step}-gain"].value or 0.0 for step in ("planner", "hetero", "cmlfq", "elastic")]
    assert 423 + sum(gains) == 763
    assert BY_ID["search-areal"].value == pytest.approx(2700 / 1.63, abs=1.0)


@pytest.mark.skipif(not FACTS.is_dir(), reason="the articles are not part of the repository")
def test_quotes_are_verbatim() -> None:
    texts = [(FACTS / name).read_text(encoding="utf-8") for name in ("article_en.txt", "article_zh.txt")]
    for claim in CLAIMS:
        if claim.quote and not claim.quote.startswith("second-hand"):
            assert any(claim.quote in text for text in texts), claim.id
            assert {"S1", "S2"} & set(claim.source), claim.id


@pytest.mark.skipif(not FACTS.is_dir(), reason="the articles are not part of the repository")
@pytest.mark.parametrize("name", ["article_en.txt", "article_zh.txt"])
def test_no_number_of_the_articles_is_missing(name: str) -> None:
    text = (FACTS / name).read_text(encoding="utf-8")
    text = re.sub(r"17\s000", "17000", re.sub(r"https?://\S+", "", text))
    text = re.sub("[\u2010-\u2013]", "-", text)  # the articles' hyphens
    text = re.sub(r"圖 \d|A800|SXM4|Search-R1|R2E-Gym|\n\d\. ", " ", text)  # names and numbered lists
    text = text.replace("1/2.5", "2.5")
    found = {float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d+)?", text)}
    found |= {float(n) for n in re.findall(r"TP-(\d)", text)}
    scale = {1.0: 1000.0, 32.0: 32000.0, 17.0: 17000.0, 13.0: 13000.0, 1.3: 13000.0}  # "1K", "13 k lines", "1.3 萬行"
    present = {number for claim in CLAIMS for number in numbers_of(claim)}
    assert {number for number in found if number not in present and scale.get(number) not in present} == set()


def test_sources_are_used_and_named_without_files() -> None:
    sources = load_sources()
    assert {tag for claim in CLAIMS for tag in claim.source} == set(sources)
    assert "paper.md" not in CLAIMS_FILE.read_text(encoding="utf-8")


NO_CELLS_YET = {"routing-accuracy-embedding"}
"""No embedding predictor runs here; the verdict says so."""


def test_the_studies_have_the_cells_that_simulated_claims_ask_for() -> None:
    args = StudyArgs(num_seeds=2, num_steps=3)
    studies = (ablation, end_to_end, motivation, routing)
    planned = {(c.study, c.workload, c.policy, c.variant) for study in studies for c in study.STUDY.cells(args)}
    gaps = set()
    for claim in CLAIMS:
        if claim.experiment is None or "sim" not in claim.judged_by:
            continue
        for side in (claim.experiment.cells, *claim.experiment.against):
            for workload in claim.experiment.workloads:
                if (claim.experiment.study, workload, side.policy, side.variant or "") not in planned:
                    gaps.add(claim.id)
    assert gaps == NO_CELLS_YET


# ---- broken files

HEAD = """
[source.S]
title = "t"
trust = "article"
[tolerance.t]
value = 0.25
reason = "because"
"""
CLAIM = """
[[claim]]
id = "a"
value = 2.0
unit = "x"
statement = "s"
kind = "reported"
source = ["S"]
quote = "q"
metric = "speedup"
tolerance = "t"
why = "w"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + CLAIM + "tolerence = 1\n", r"claim a: unknown key.*tolerence(.|\n)*did you mean 'tolerance'"),
        (HEAD + CLAIM + CLAIM, "claim id is used twice"),
        (HEAD + CLAIM + 'contradicts = ["b"]\nnote = "n"\n', "contradicts names no other claim"),
        (HEAD + CLAIM + 'contradicts = ["a"]\nnote = "n"\n', "contradicts names no other claim"),
        (HEAD + CLAIM.replace('"t"', '"tt"'), "unknown tolerance class"),
        (HEAD + CLAIM.replace('["S"]', '["Z"]'), "unknown source"),
        (HEAD + CLAIM.replace('why = "w"\n', ""), "say `why` sim may not judge"),
        (HEAD + CLAIM.replace("2.0", '"2.0"'), "value: Input should be a valid number"),
        (HEAD + CLAIM.replace('quote = "q"\n', ""), "needs its sentence"),
        (HEAD + CLAIM + "low = 1.0\n", "exactly one of"),
        (HEAD + CLAIM.replace("speedup", "sped"), "unknown metric 'sped'"),
        (HEAD + CLAIM + 'judged_by = ["sim"]\n', "needs an `experiment`"),
        (HEAD + CLAIM + "high = 3.0\n", "exactly one of"),
        (HEAD + CLAIM + "[extra]\nx = 1\n", "unknown key"),
        ("[[claim", "cannot be read"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        load_claims(path)


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_claims(tmp_path / "none.toml")


# ---- bands and verdicts, computed by hand


def a_claim(**fields: object) -> Claim:
    base: dict[str, object] = dict(
        id="a", unit="x", statement="s", kind="reported", source=("S",), quote="q", metric="speedup", tolerance=0.25,
        tolerance_reason="r", judged_by=("sim",), experiment=Experiment.model_validate(RATIO),
    )  # fmt: skip
    return Claim.model_validate({**base, **fields})


RATIO = {
    "study": "s", "workloads": ["w"], "metric": "trajectory_tok_per_s", "statistic": "paired_ratio",
    "cells": {"policy": "p"}, "against": [{"policy": "q"}],
}  # fmt: skip
LEVEL = {k: v for k, v in RATIO.items() if k != "against"} | {"statistic": "mean"}


def found(value: float, low: float | None, high: float | None, unit: str = "x", n: int = 5) -> Measurement:
    return Measurement(value, low, high, n, tuple(range(n)), unit)


def test_bands() -> None:
    assert band(a_claim(value=3.0)) == (2.5, 3.5)  # effect 2, a quarter of it either side
    assert band(a_claim(value=0.6)) == pytest.approx((0.5, 0.7))
    assert band(a_claim(value=2.0, bound="at_least")) == (1.75, math.inf)
    assert band(a_claim(value=2.0, bound="at_most")) == (-math.inf, 2.25)
    assert band(a_claim(low=2.0, high=3.0)) == (1.75, 3.5)
    assert band(a_claim(value=400.0, unit="token/s", experiment=LEVEL)) == (300.0, 500.0)
    assert band(BY_ID["search-areal-increase"]) == (63 * 0.75, 63 * 1.25)


@pytest.mark.parametrize(
    ("value", "low", "high", "word"),
    [
        (3.0, 2.9, 3.1, "reproduced"),  # inside the band 2.5 to 3.5
        (3.4, 3.2, 3.6, "reproduced"),  # sticks out, but is narrower than the band
        (3.0, 2.0, 4.0, "consistent"),  # wider than the band
        (3.6, 3.4, 3.8, "consistent"),  # meets the band, the value outside
        (1.8, 1.7, 1.9, "direction only"),
        (5.0, 4.0, 6.0, "direction only"),
        (1.0, 0.9, 1.1, "not reproduced"),
        (0.8, 0.7, 0.9, "not reproduced"),
        (1.8, 0.9, 2.9, "not judged"),  # holds both the claim and no effect
        (3.0, None, None, "not judged"),
    ],
)
def test_verdicts_on_a_ratio_of_three(value: float, low: float | None, high: float | None, word: str) -> None:
    assert judge(a_claim(value=3.0), {"sim": found(value, low, high)}).word == word


@pytest.mark.parametrize(
    ("value", "low", "high", "word"),
    [
        (400.0, 390.0, 410.0, "reproduced"),
        (510.0, 480.0, 540.0, "consistent"),
        (600.0, 590.0, 610.0, "not reproduced"),
        (200.0, 190.0, 210.0, "not reproduced"),
        (400.0, 100.0, 700.0, "not judged"),
    ],
)
def test_verdicts_on_a_level_of_400(value: float, low: float, high: float, word: str) -> None:
    claim = a_claim(value=400.0, unit="token/s", experiment=LEVEL)
    assert judge(claim, {"sim": found(value, low, high, "token/s")}).word == word


@pytest.mark.parametrize(
    ("value", "low", "high", "word"),
    [
        (1.3, 1.2, 1.4, "reproduced"),
        (1.01, 0.98, 1.04, "consistent"),
        (0.9, 0.85, 0.95, "not reproduced"),
    ],
)
def test_verdicts_on_an_ordering(value: float, low: float, high: float, word: str) -> None:
    claim = a_claim(value=1.0, bound="at_least", tolerance=0.0)
    assert judge(claim, {"sim": found(value, low, high)}).word == word


def test_a_slowdown_has_its_own_direction() -> None:
    claim = a_claim(value=0.5)
    assert judge(claim, {"sim": found(0.8, 0.7, 0.9)}).word == "direction only"
    assert judge(claim, {"sim": found(1.2, 1.1, 1.3)}).reason == "the effect is in the opposite direction"


def test_a_gain_of_41_is_not_shown_by_a_gain_of_nothing() -> None:
    claim = BY_ID["ablation-hetero-gain"]
    assert judge(claim, {"sim": found(0.5, -4.0, 5.0, "token/s")}).word == "not reproduced"
    assert judge(claim, {"sim": found(20.0, -10.0, 50.0, "token/s")}).word == "not judged"
    assert judge(claim, {"sim": found(45.0, 40.0, 50.0, "token/s")}).word == "reproduced"


def test_what_was_never_used_is_not_judged() -> None:
    rows = table(*((w, p, s, 2.0 + s) for w, p, s in itertools.product("w", "pq", (0, 1, 2))))
    same = measure(an_experiment(), rows)
    assert isinstance(same, Measurement) and same.same
    verdict = judge(a_claim(value=3.0), {"sim": same})
    assert (verdict.word, verdict.reason.split(":")[0]) == (
        "not judged",
        "both sides took the same decisions in every seed",
    )
    assert judge(a_claim(value=1.0), {"sim": same}).word == "reproduced", "a claim of no effect is met by the same runs"
    rows.loc[0, "value"] *= 1.01
    other = measure(an_experiment(), rows)
    assert isinstance(other, Measurement) and not other.same


def test_who_may_judge() -> None:
    reward = BY_ID["headline-time-to-reward"]
    verdict = judge(reward, {"sim": found(2.5, 2.4, 2.6), "live": found(2.5, 2.4, 2.6)})
    assert verdict.word == "not judged" and "assumes the reward curve" in verdict.reason
    assert judge(reward, {"live-48gpu": found(2.5, 2.4, 2.6)}).judge == "live-48gpu"
    both = judge(
        BY_ID["ablation-total-increase"], {"sim": found(0.0, -1.0, 1.0, "%"), "live-48gpu": found(80, 75, 85, "%")}
    )
    assert (both.judge, both.word) == ("live-48gpu", "reproduced")
    assert judge(BY_ID["setup-gpus"], {}).reason.startswith("a setting")
    silent = judge(BY_ID["growth-rollout"], {"sim": "the store has no cell of it"})
    assert silent.reason == "live-48gpu: no run; sim: the store has no cell of it"


def test_units_are_converted_or_refused() -> None:
    verdict = judge(BY_ID["routing-accuracy-cmlfq"], {"sim": found(0.9, 0.89, 0.91, "share")})
    assert verdict.word == "reproduced"
    assert verdict.measurement is not None and verdict.measurement.high == pytest.approx(91.0)
    with pytest.raises(ValueError, match="measured in token/s, claimed in x"):
        judge(a_claim(value=3.0), {"sim": found(3.0, 2.9, 3.1, "token/s")})


# ---- measuring on a tidy table


def table(*rows: tuple[str, str, int, float], metric: str = "trajectory_tok_per_s", **fixed: str) -> pd.DataFrame:
    common = (
        dict(study="s", cluster="a800x48", model="qwen3-14b", variant="", pipeline="barrier", status="done") | fixed
    )
    return pd.DataFrame(
        [dict(workload=w, policy=p, seed=s, metric=metric, value=v, **common) for w, p, s, v in rows],
    )


def an_experiment(**fields: object) -> Experiment:
    return Experiment.model_validate({**RATIO, **fields})


def test_measure_pairs_by_seed() -> None:
    rows = table(("w", "p", 0, 2.0), ("w", "q", 0, 1.0), ("w", "p", 1, 30.0), ("w", "q", 1, 15.0), ("w", "p", 2, 9.0))
    found_ratio = measure(an_experiment(), rows)
    assert isinstance(found_ratio, Measurement)
    assert found_ratio.value == pytest.approx(2.0)
    assert (found_ratio.n, found_ratio.unit) == (2, "x")
    assert found_ratio.note == "seeds without a partner: 2"
    increase = measure(an_experiment(statistic="paired_increase"), rows)
    assert isinstance(increase, Measurement)
    assert increase.value == increase.low == pytest.approx(100.0)
    assert increase.unit == "%"
    difference = measure(an_experiment(statistic="paired_difference"), rows)
    assert isinstance(difference, Measurement) and difference.value == pytest.approx(8.0)


def test_other_hardware_or_another_model_does_not_answer() -> None:
    rows = table(("w", "p", 0, 2.0), ("w", "q", 0, 1.0), ("w", "p", 1, 2.2), ("w", "q", 1, 1.0))
    assert isinstance(measure(an_experiment(), rows), Measurement)
    for change in ({"cluster": "h100x64"}, {"model": "qwen3-8b"}):
        assert "on a800x48 with qwen3-14b" in str(measure(an_experiment(), rows.assign(**change)))


def test_measure_takes_the_best_baseline_and_the_best_workload() -> None:
    rows = table(*(
        (workload, policy, seed, value)
        for seed in (0, 1)
        for workload, policy, value in (
            ("w", "p", 6.0), ("w", "q", 1.0), ("w", "r", 3.0), ("v", "p", 8.0), ("v", "q", 2.0), ("v", "r", 1.0),
        )
    ))  # fmt: skip
    experiment = an_experiment(workloads=["w", "v"], against=[{"policy": "q"}, {"policy": "r"}])
    got = measure(experiment, rows)
    assert isinstance(got, Measurement)
    assert got.value == pytest.approx(4.0)
    assert got.note == "v; against q"
    assert measure(experiment, rows[rows["workload"] == "w"]) == (
        "the store has no cell of s, v, p"
    )  # a maximum over one of two workloads is not the claimed one


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (table(("w", "q", 0, 1.0)), "the store has no cell of s, w, p"),
        (table(("w", "p", 0, 1.0), ("w", "q", 0, 1.0), status="failed"), "no finished cell of s, w, p: failed"),
        (table(("w", "p", 0, 1.0), ("w", "q", 0, 1.0), metric="step_s"), "s, w, p has no metric trajectory_tok_per_s"),
        (table(("w", "p", 0, 1.0), ("w", "q", 1, 1.0)), "w: p and q share no finished seed"),
        (table(("w", "p", 0, 0.0), ("w", "q", 0, 1.0)), "w: trajectory_tok_per_s is not positive everywhere"),
        (table(("w", "p", 0, math.nan), ("w", "q", 0, 1.0)), "s, w, p has no value of trajectory_tok_per_s"),
        (table(("w", "p", 0, 1.0), ("w", "p", 0, 2.0), ("w", "q", 0, 1.0)), "s, w, p has two values of one seed"),
        (
            pd.concat([table(("w", "p", 0, 1.0)), table(("w", "p", 0, 1.0), variant="z"), table(("w", "q", 0, 1.0))]),
            "s, w, p is ambiguous: variant",
        ),
    ],
)
def test_measure_says_why_not(rows: pd.DataFrame, reason: str) -> None:
    got = measure(an_experiment(), rows)
    assert isinstance(got, str) and got.startswith(reason)


def test_a_variant_picks_its_cells() -> None:
    rows = pd.concat([
        table(("w", "p", 0, 9.0), ("w", "p", 1, 9.0), variant="long"),
        table(("w", "p", 0, 3.0), ("w", "p", 1, 3.0), variant="short"),
    ])  # fmt: skip
    experiment = an_experiment(cells={"policy": "p", "variant": "long"}, against=[{"policy": "p", "variant": "short"}])
    got = measure(experiment, rows)
    assert isinstance(got, Measurement) and got.value == pytest.approx(3.0)


def test_a_mean_takes_no_baseline() -> None:
    with pytest.raises(ValueError, match="`against` is needed"):
        an_experiment(statistic="mean")
    assert an_experiment(statistic="mean", against=[]).unit == METRIC_UNITS["trajectory_tok_per_s"]


def test_throughput_of_one_gpu() -> None:
    experiment = an_experiment(statistic="mean", against=[], divide_by=8)
    got = measure(experiment, table(("w", "p", 0, 800.0), ("w", "p", 1, 800.0)))
    assert isinstance(got, Measurement)
    assert (got.value, got.low, got.high) == (100.0, 100.0, 100.0)
    with pytest.raises(ValueError, match="`divide_by` goes with"):
        an_experiment(divide_by=8)


def test_one_run_of_a_workload_without_chance_is_exact() -> None:
    rows = table(("fixed-length", "p", 0, 3.0), ("fixed-length", "q", 0, 1.5))
    exact = measure(an_experiment(workloads=["fixed-length"]), rows)
    assert isinstance(exact, Measurement)
    assert (exact.value, exact.low, exact.high, exact.n) == (2.0, 2.0, 2.0, 1)
    drawn = measure(an_experiment(workloads=["w"]), table(("w", "p", 0, 3.0), ("w", "q", 0, 1.5)))
    assert isinstance(drawn, Measurement) and drawn.low is None
