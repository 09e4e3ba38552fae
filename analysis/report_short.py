"""The report's "In short": plain sentences computed from the data, none of which states anything beforehand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd

from analysis.names import HOMOGENEOUS, LIBRA, MAIN_STUDIES, RATE, REAL_STUDIES, RECORDED, UNIFORM, WORKLOAD_TITLES
from analysis.pairs import interval, ratio, real_input, select, text
from analysis.statistics import RESOLVED_HALF_WIDTH, Estimate
from analysis.verdicts import Judged, count
from analysis.worlds import sentence

CHAIN = ((UNIFORM, ""), ("libra-homogeneous", "the planner"), ("libra-hetero", "heterogeneous TP"),
         ("libra-cmlfq", "C-MLFQ"), (LIBRA, "the elastic pool"))  # fmt: skip

SIDES = {
    "above": "interval above 1",
    "below": "interval below 1",
    "open": "interval holds 1",
    "equal": "equal in every seed",
    "alone": "no interval",
}


def sentences(table: pd.DataFrame, judged: Sequence[Judged], validation: Path) -> list[str]:
    """Seven to ten sentences; a study without finished cells gives one that says so. `validation`: file of errors."""
    generated, real = real_input(table, wanted=False), real_input(table)
    main = next((name for name in MAIN_STUDIES if not _done(generated, name).empty), MAIN_STUDIES[0])
    replayed = next((name for name in REAL_STUDIES if not _done(real, name).empty), REAL_STUDIES[0])
    return [
        *_main(_done(generated, main), main),
        _ablation(_done(table, "ablation")),
        _routing(_done(table, "routing")),
        _worlds(table[table["study"] == "worlds"]),
        _traces(_done(real, replayed)),
        _verdicts(judged),
        _resolved(generated, main),
        _errors(validation),
    ]


def versus(found: Estimate | None, whose: str) -> str:
    """`1.21 [1.15, 1.27] times that of X (n = 3)`, with what keeps the ratio from being told from 1."""
    if found is None:
        return f"not known against {whose} (no pair of finished seeds)"
    return f"{text(found, '.3f')} times {whose} (n = {found.n}; {SIDES[side_of_one(found)]})"


def side_of_one(found: Estimate | None) -> str:
    """Where an interval lies: "above" or "below" 1, "equal" to 1 in every seed, "open", or "alone" (there is none)."""
    if found is None or found.low is None or found.high is None:
        return "alone"
    if set(found.per_seed) == {1.0}:
        return "equal"
    return "above" if found.low > 1.0 else "below" if found.high < 1.0 else "open"


def _done(table: pd.DataFrame, study: str) -> pd.DataFrame:
    return select(table, study=study)


def _ratio(rows: pd.DataFrame, policy: str, against: str, **where: object) -> Estimate | None:
    ours = {"policy": policy, "metric": RATE, **where}
    return ratio(rows, ours, {**ours, "policy": against})


def _main(rows: pd.DataFrame, study: str) -> list[str]:
    if rows.empty:
        return [f"Main comparison: no finished cell of study {study}; run `libra run {study}`."]
    found = []
    for workload in dict.fromkeys(rows["workload"]):
        parts = [versus(_ratio(rows, LIBRA, UNIFORM, workload=workload), f"that of `{UNIFORM}`")]
        if HOMOGENEOUS in set(rows["policy"]):
            best = _ratio(rows, LIBRA, HOMOGENEOUS, workload=workload)
            parts.append(versus(best, "that of the best homogeneous plan"))
        elif (rival := _fastest_other(rows[rows["workload"] == workload])) not in (None, UNIFORM):
            best = _ratio(rows, LIBRA, rival, workload=workload)
            parts.append(versus(best, f"that of the fastest other system that ran, `{rival}`"))
        found.append(f"**{WORKLOAD_TITLES.get(workload, workload)}**: Libra's throughput is {' and '.join(parts)}.")
    return found


def _fastest_other(rows: pd.DataFrame) -> str | None:
    """Policy other than Libra with the highest mean throughput, oracles aside; None when none ran."""
    others = (rows["policy"] != LIBRA) & ~rows["policy"].str.contains("oracle")
    rates = rows[(rows["metric"] == RATE) & others].groupby("policy")["value"].mean()
    return None if rates.empty else str(rates.idxmax())


def _ablation(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "Ablation: no finished cell; run `libra run ablation`."
    groups: dict[str, list[str]] = {side: [] for side in SIDES}
    for (before, _), (after, part) in pairwise(CHAIN):
        found = _ratio(rows, after, before)
        groups[side_of_one(found)].append(f"{part} ({text(found, '.3f') or 'no pair'})")
    parts = [f"{SIDES[side]} for {' and '.join(names)}" for side, names in groups.items() if names]
    return f"**Ablation** on R2E-Gym, each part's throughput over the step before it: {'; '.join(parts)}."


def _routing(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "Routing: no finished cell; run `libra run routing`."
    parts = []
    for workload in dict.fromkeys(rows["workload"]):
        gain = _ratio(rows, "pattern-cmlfq", "pattern-blind", workload=workload)
        accuracy = interval(rows, workload=workload, policy="pattern-cmlfq", metric="routing_accuracy")
        share = f", one-shot accuracy {100 * accuracy.value:.0f} %" if accuracy else ""
        where = WORKLOAD_TITLES.get(workload, workload)
        parts.append(f"on {where} {versus(gain, 'that of length-blind routing')}{share}")
    return f"**Routing** on the authors' released layout: C-MLFQ's throughput is {'; '.join(parts)}."


def _worlds(rows: pd.DataFrame) -> str:
    pairs = ((LIBRA, UNIFORM), (LIBRA, HOMOGENEOUS), ("pattern-cmlfq", "pattern-blind"))
    found = [text for ours, theirs in pairs if (text := sentence(rows, ours, theirs))]
    if not found:
        return "Worlds: no finished cell; run `libra run worlds`."
    return f"**Worlds**, other constants of the simulator and other networks: {'; '.join(found)}."


def _traces(rows: pd.DataFrame) -> str:
    if rows.empty:
        return "Real traces: no finished cell; run `libra run traces`."
    found = {name: _ratio(rows, LIBRA, UNIFORM, workload=name) for name in sorted(set(rows["workload"]))}
    known = [each.value for each in found.values() if each is not None]
    if not known:
        return f"**Real traces**: {len(found)} were replayed, none through both Libra and `{UNIFORM}`."
    faster = sum(value > 1.0 for value in known)
    said = (
        f"**Real traces**: Libra's mean is above that of `{UNIFORM}` on {faster} of {len(known)} "
        f"(ratios {min(known):.2f} to {max(known):.2f})"
    )
    rivals = {name: _fastest_other(rows[rows["workload"] == name]) for name in found}
    best = [_ratio(rows, LIBRA, rival, workload=name) for name, rival in rivals.items() if rival]
    ratios = [each.value for each in best if each is not None]
    above = sum(value > 1.0 for value in ratios)
    own = sum(name.startswith(RECORDED) for name in found)
    whose = f" {own} of them: recordings of a tiny policy on CPU cores, played on the simulated model." if own else ""
    return (
        f"{said}, and above that of the fastest other system on {above} of {len(ratios)} "
        f"(ratios {min(ratios):.2f} to {max(ratios):.2f}).{whose}"
    )


def _verdicts(judged: Sequence[Judged]) -> str:
    counts = count(judged)
    parts = ", ".join(f"{number} {word}" for word, number in counts.items())
    return f"**Claims**: of the paper's {sum(counts.values())} results, {parts}. Its settings are not counted."


def _resolved(table: pd.DataFrame, study: str) -> str:
    rows = _done(table, study)
    found = [
        each
        for workload in dict.fromkeys(rows["workload"])
        for policy in dict.fromkeys(rows["policy"])
        if policy != UNIFORM and (each := _ratio(rows, policy, UNIFORM, workload=workload)) is not None
    ]
    rule = f"{RESOLVED_HALF_WIDTH:.0%}".replace("%", " %")
    if not found:
        return f"**Precision**: no pair to measure against the rule (half-width of a ratio's interval at most {rule})."
    resolved = sum(each.resolved for each in found)
    return (
        f"**Precision**: {resolved} of {len(found)} ratios to `{UNIFORM}` in study {study} are resolved (half-width of "
        f"the interval at most {rule}); the others are unresolved and need more seeds."
    )


def _errors(validation: Path) -> str:
    if not validation.exists():
        return "Simulator: not held against measurements; run `libra validate`."
    found = json.loads(validation.read_bytes())
    uses: dict[str, list[tuple[str, float, int]]] = {"held out": [], "blind": [], "blind, extrapolated": []}
    for each in found["tables"]:
        if each["use"] in uses:
            uses[each["use"]].append((each["name"], each["mean"], each["num_rows"]))
    parts = [f"{name} {mean:.1%} (n = {rows})" for name, mean, rows in uses["held out"]]
    parts += [f"predicted blind on {name.split()[-1]} {mean:.1%} (n = {rows})" for name, mean, rows in uses["blind"]]
    if beyond := [mean for _, mean, _ in uses["blind, extrapolated"]]:
        parts.append(f"blind on GPUs without a calibration {min(beyond):.0%} to {max(beyond):.0%}")
    missed = sum(not gate["met"] for gate in found["gates"])
    gates = f"Gates missed: {missed} of {len(found['gates'])}."
    return f"**Simulator's mean error** on measured times: {'; '.join(parts)}. {gates}"
