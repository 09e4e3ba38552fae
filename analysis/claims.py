"""Verdicts on the paper's numbers, by rules fixed before any run that they judge.

The *effect* of a claim is its distance from "no effect": 1 for a ratio, 0 for a difference or an increase against a
baseline; for a level the effect is the value itself. The *band* is the claimed effect plus or minus tolerance x effect;
"at least" and "at most" leave one side of it open. With our 95 % interval over seeds:

- not judged: a setting, not a result; nobody allowed to judge it has measured it; fewer than two seeds; both sides of a
  comparison equal to the last bit in every seed (they took the same decisions, so what is compared was never used); an
  interval that holds both the band and "no effect"; or, for a level, a half-width above half the claimed value.
- reproduced: our value is in the band, and the interval lies in the band or is no wider than it.
- consistent: the interval meets the band, but less firmly than that.
- direction only: the interval misses the band and lies wholly on the claim's side of "no effect".
- not reproduced: anything else: no effect, the opposite effect, or another level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from analysis.claim_model import UNIT_FACTORS, Claim, Experiment, Judge, Selector, load_claims
from analysis.statistics import Estimate, mean_interval, paired_difference, paired_ratio

__all__ = ["Claim", "Experiment", "Measurement", "Verdict", "judge", "load_claims", "measure"]

Word = Literal["reproduced", "consistent", "direction only", "not reproduced", "not judged"]

STRENGTH: tuple[Judge, ...] = ("live-48gpu", "live", "sim")
"""Who is asked first: the paper's own scale, then real processes, then the simulator."""

DETERMINISTIC_WORKLOADS = ("fixed-length",)
"""Workloads without a random draw: every seed is the same run, so one run is exact and its interval a point."""

MAX_LEVEL_HALF_WIDTH = 0.5
"""A level known to no better than half of the claimed value cannot tell the claim from half or twice of it."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What we found, with its 95 % interval over seeds; `low` and `high` are None for fewer than two seeds."""

    value: float
    low: float | None
    high: float | None
    n: int
    seeds: tuple[int, ...]
    unit: str
    note: str = ""
    """What a reader must know: which workload or baseline was taken, which seeds had no partner."""
    same: bool = False
    """Both sides of the comparison have exactly equal values in every seed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The word, the sentence that explains it, who judged, and on what."""

    claim: str
    word: Word
    reason: str
    judge: Judge | None = None
    measurement: Measurement | None = None
    """In the claim's unit."""


def band(claim: Claim) -> tuple[float, float]:
    """Values that agree with the claim: (low, high), either of them infinite for a bound."""
    origin = claim.no_effect or 0.0
    if claim.value is not None:
        low = high = claim.value
    else:
        assert claim.low is not None and claim.high is not None, "settings have no band"
        low, high = claim.low, claim.high
    low, high = low - claim.tolerance * abs(low - origin), high + claim.tolerance * abs(high - origin)
    return (-math.inf if claim.bound == "at_most" else low, math.inf if claim.bound == "at_least" else high)


def judge(claim: Claim, measurements: Mapping[Judge, Measurement | str]) -> Verdict:
    """Verdict from the strongest judge that the claim allows and that has measured.

    A string in place of a measurement says why there is none. Measurements by others are ignored.
    """
    if claim.kind == "setup":
        return Verdict(claim.id, "not judged", "a setting of the paper's experiment, not a result")
    missing = []
    for backend in STRENGTH:
        if backend not in claim.judged_by:
            continue
        found = measurements.get(backend, "no run")
        if isinstance(found, Measurement):
            in_unit = _convert(found, claim.unit)
            word, reason = _compare(claim, in_unit)
            return Verdict(claim.id, word, reason, backend, in_unit)
        missing.append(f"{backend}: {found}")
    return Verdict(claim.id, "not judged", "; ".join(([claim.why] if claim.why else []) + missing))


def _compare(claim: Claim, found: Measurement) -> tuple[Word, str]:
    if found.low is None or found.high is None:
        return "not judged", f"{found.n} seed has no interval"
    low, high = band(claim)
    null = claim.no_effect
    meets = found.low <= high and found.high >= low
    if null is None:
        claimed = claim.value if claim.value is not None else claim.low
        assert claimed is not None, "settings are not compared"
        if _half_width(found) > MAX_LEVEL_HALF_WIDTH * abs(claimed):
            return "not judged", f"interval wider than {MAX_LEVEL_HALF_WIDTH:.0%} of the claimed value on n = {found.n}"
    elif found.same and not low <= null <= high:
        return "not judged", "both sides took the same decisions in every seed: what is compared was never used"
    elif meets and found.low <= null <= found.high and not low <= null <= high:
        return "not judged", f"interval holds both the claim and no effect on n = {found.n}"
    if not meets:
        return _miss(claim, found, null)
    inside = low <= found.low and found.high <= high
    as_narrow = math.isfinite(high - low) and _half_width(found) <= (high - low) / 2.0
    if low <= found.value <= high and (inside or as_narrow):
        return "reproduced", f"within {_band_text(low, high)}"
    return "consistent", f"interval meets {_band_text(low, high)}"


def _miss(claim: Claim, found: Measurement, null: float | None) -> tuple[Word, str]:
    low, high = band(claim)
    assert found.low is not None and found.high is not None, "checked by the caller"
    if null is None:
        return "not reproduced", f"outside {_band_text(low, high)}"
    claims_more = (low + high > 2.0 * null) if math.isfinite(low + high) else claim.bound == "at_least"
    same_side = found.low > null if claims_more else found.high < null
    if same_side:
        return "direction only", f"same direction, outside {_band_text(low, high)}"
    if found.low <= null <= found.high:
        return "not reproduced", "no effect is within our interval"
    return "not reproduced", "the effect is in the opposite direction"


def _half_width(found: Measurement) -> float:
    assert found.low is not None and found.high is not None, "checked by the caller"
    return max(found.value - found.low, found.high - found.value)


def _band_text(low: float, high: float) -> str:
    if math.isinf(high):
        return f"{low:.4g} or more"
    return f"{high:.4g} or less" if math.isinf(low) else f"{low:.4g} to {high:.4g}"


def _convert(found: Measurement, unit: str) -> Measurement:
    """Raises ValueError when the measurement is in a unit that has no factor to the claim's."""
    if found.unit == unit:
        return found
    factor = UNIT_FACTORS.get((found.unit, unit))
    if factor is None:
        raise ValueError(f"measured in {found.unit}, claimed in {unit}")
    scaled = [None if side is None else side * factor for side in (found.low, found.high)]
    return replace(found, value=found.value * factor, low=scaled[0], high=scaled[1], unit=unit)


def measure(experiment: Experiment, table: pd.DataFrame) -> Measurement | str:
    """What the store says, or why it says nothing.

    `table` has one row a metric of a cell: study, workload, cluster, model, policy, variant, seed, pipeline, status,
    metric, value. Only cells with status "done" count. Over several workloads the largest value is taken ("up to");
    among several `against`, per workload, the one with the highest mean.
    """
    best: Measurement | None = None
    reasons = []
    for workload in experiment.workloads:
        found = _measure_one(experiment, workload, table)
        if isinstance(found, str):
            reasons.append(found)
        elif best is None or found.value > best.value:
            best = found
    if best is None or (reasons and len(experiment.workloads) > 1):
        return "; ".join(reasons)  # a maximum over some of the workloads would not be the claimed one
    return best


def _measure_one(experiment: Experiment, workload: str, table: pd.DataFrame) -> Measurement | str:
    ours = _by_seed(experiment, workload, experiment.cells, table)
    if isinstance(ours, str):
        return ours
    sides = {side: _by_seed(experiment, workload, side, table) for side in experiment.against}
    gaps = [side for side in sides.values() if isinstance(side, str)]
    if gaps:
        return "; ".join(gaps)
    notes = [workload] if len(experiment.workloads) > 1 else []
    if not sides:
        each = {seed: value / experiment.divide_by for seed, value in ours.items()}
        return _measurement(mean_interval(each), workload, experiment.unit, notes)
    means = {side: math.fsum(seeds.values()) / len(seeds) for side, seeds in sides.items() if isinstance(seeds, dict)}
    chosen = max(means, key=lambda side: means[side])
    if len(sides) > 1:
        notes.append(f"against {chosen.policy}")
    theirs = sides[chosen]
    assert isinstance(theirs, dict), "gaps were returned above"
    if not ours.keys() & theirs.keys():
        return f"{workload}: {experiment.cells.policy} and {chosen.policy} share no finished seed"
    same = all(ours[seed] == theirs[seed] for seed in ours.keys() & theirs.keys())
    if experiment.statistic == "paired_difference":
        return _measurement(paired_difference(ours, theirs), workload, experiment.unit, notes, same=same)
    if min(*ours.values(), *theirs.values()) <= 0.0:
        return f"{workload}: {experiment.metric} is not positive everywhere, so it has no ratio"
    ratio = paired_ratio(ours, theirs)
    if experiment.statistic == "paired_increase":
        low, high = (None if side is None else (side - 1.0) * 100.0 for side in (ratio.low, ratio.high))
        ratio = replace(ratio, value=(ratio.value - 1.0) * 100.0, low=low, high=high)
    return _measurement(ratio, workload, experiment.unit, notes, same=same)


def _measurement(found: Estimate, workload: str, unit: str, notes: list[str], *, same: bool = False) -> Measurement:
    if found.low is None and workload in DETERMINISTIC_WORKLOADS:
        found = replace(found, low=found.value, high=found.value)
        notes = [*notes, "a workload without chance: one run is exact"]
    if found.unpaired_seeds:
        notes = [*notes, f"seeds without a partner: {', '.join(map(str, found.unpaired_seeds))}"]
    return Measurement(found.value, found.low, found.high, found.n, found.seeds, unit, "; ".join(notes), same)


def _by_seed(experiment: Experiment, workload: str, side: Selector, table: pd.DataFrame) -> dict[int, float] | str:
    """Value of the metric by seed, or why there is none: no such cells, none finished, or several kinds of them."""
    name = f"{experiment.study}, {workload}, {side.policy}" + (f" ({side.variant})" if side.variant else "")
    wanted = {"study": experiment.study, "workload": workload, "policy": side.policy}
    rows = table[(table[list(wanted)] == pd.Series(wanted)).all(axis=1)]
    if not rows.empty:
        wanted = {"cluster": experiment.cluster, "model": experiment.model}
        rows = rows[(rows[list(wanted)] == pd.Series(wanted)).all(axis=1)]
        if rows.empty:
            return f"the store has no cell of {name} on {experiment.cluster} with {experiment.model}"
    if side.variant is not None:
        rows = rows[rows["variant"] == side.variant]
    if rows.empty:
        return f"the store has no cell of {name}"
    done = rows[rows["status"] == "done"]
    if done.empty:
        return f"no finished cell of {name}: {', '.join(sorted(set(rows['status'])))}"
    values = done[done["metric"] == experiment.metric]
    if values.empty:
        return f"{name} has no metric {experiment.metric}"
    for column in ("variant", "pipeline"):
        kinds = sorted({str(kind) for kind in values[column]})
        if len(kinds) > 1:
            return f"{name} is ambiguous: {column} {', '.join(kinds)}"
    if values["value"].isna().any():
        return f"{name} has no value of {experiment.metric} for some seed"
    if values["seed"].duplicated().any():
        return f"{name} has two values of one seed"
    return {int(seed): float(value) for seed, value in zip(values["seed"], values["value"], strict=True)}
