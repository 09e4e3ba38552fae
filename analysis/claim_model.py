"""Shape of `paper_figures/claims.toml`: the paper's numbers, each with its source, its tolerance and who may judge it.

A claim may be one value, a range, or (settings only) a list. Tolerances are classes, so that each states its reason
once; a source that we could not read carries the words that stand in for a quotation. Unknown keys are errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from libra.core.errors import ConfigError, nearest_match
from libra.results.glossary import METRICS

CLAIMS_FILE = Path(__file__).resolve().parent.parent / "paper_figures" / "claims.toml"

Judge = Literal["sim", "live", "live-48gpu", "none"]
Statistic = Literal["mean", "paired_ratio", "paired_increase", "paired_difference"]

METRIC_UNITS: dict[str, str] = {metric.name: metric.unit for metric in METRICS.values()} | {
    "speedup": "x",
    "rollout_growth_1k_32k": "x",
    "train_growth_1k_32k": "x",
    "length_spread": "x",
    "mape": "share",
    "transition_of_step": "share",
    "hours": "h",
    "time_to_reward_h": "h",
    "seconds": "s",
    "tokens": "token",
    "tokens_per_step": "token",
    "kv_bytes_per_token": "KiB/token",
    "kv_bytes": "GB",
    "bandwidth": "GB/s",
}
"""What a claim may be about: the glossary of the store, and quantities that the paper reports beyond it."""

UNIT_FACTORS: dict[tuple[str, str], float] = {("share", "%"): 100.0, ("s", "ms"): 1e3, ("s", "h"): 1.0 / 3600.0}
"""Factor from a measured unit to a claimed one; equal units need none."""

Names = Annotated[tuple[str, ...], Field(strict=False)]


class StrictModel(BaseModel):
    """Frozen data from TOML: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


Model = TypeVar("Model", bound=StrictModel)


class Source(StrictModel):
    """Where numbers come from; `unavailable` says, in place of a quotation, why there is none."""

    title: str
    trust: Literal["article", "abstract", "code", "low"]
    unavailable: str = ""


class ToleranceClass(StrictModel):
    """Relative tolerance on the effect, and why it is that wide."""

    value: Annotated[float, Field(ge=0.0)]
    reason: Annotated[str, Field(min_length=1)]


class Selector(StrictModel):
    """Cells of one side of a comparison; `variant` None means the study has one variant of this policy."""

    policy: str
    variant: str | None = None


class Experiment(StrictModel):
    """How the store answers a claim. Several workloads: the largest value counts ("up to"). Several `against`: the best
    of them (highest mean) is the denominator."""

    study: str
    cluster: str = "a800x48"
    model: str = "qwen3-14b"
    """Runs on anything else do not answer for the paper's."""
    workloads: Annotated[Names, Field(min_length=1)]
    metric: str
    statistic: Statistic
    cells: Selector
    divide_by: Annotated[float, Field(gt=0.0)] = 1.0
    """GPUs of the pool, where a claim is read as the throughput of one of them."""
    against: Annotated[tuple[Selector, ...], Field(strict=False)] = ()

    @model_validator(mode="after")
    def _comparison_has_two_sides(self) -> Experiment:
        if (self.statistic == "mean") == bool(self.against):
            raise ValueError("`against` is needed by every statistic but `mean`, which takes none")
        if self.divide_by != 1.0 and self.statistic != "mean":
            raise ValueError("`divide_by` goes with the statistic `mean`")
        if self.metric not in METRIC_UNITS:
            raise ValueError(
                f"unknown metric {self.metric!r}; did you mean {nearest_match(self.metric, METRIC_UNITS)!r}?"
            )
        return self

    @property
    def unit(self) -> str:
        """Unit of what `measure` returns."""
        return {"paired_ratio": "x", "paired_increase": "%"}.get(self.statistic, METRIC_UNITS[self.metric])


class Claim(StrictModel):
    """One number of the paper. `derived` claims carry the arithmetic that gives them and the claims it uses."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    value: float | None = None
    low: float | None = None
    high: float | None = None
    values: Annotated[tuple[float, ...], Field(strict=False)] = ()
    bound: Literal["exact", "at_least", "at_most"] = "exact"
    unit: Annotated[str, Field(min_length=1)]
    statement: Annotated[str, Field(min_length=1)]
    kind: Literal["reported", "derived", "setup"]
    source: Annotated[Names, Field(min_length=1)]
    quote: str = ""
    quote_en: str = ""
    workload: str = ""
    system: str = ""
    baseline: str = ""
    metric: str = ""
    tolerance: float = 0.0
    tolerance_reason: str = ""
    judged_by: Annotated[tuple[Judge, ...], Field(strict=False)] = ("none",)
    why: str = ""
    experiment: Experiment | None = None
    reading_of: str = ""
    contradicts: Names = ()
    note: str = ""
    derived_from: Names = ()
    arithmetic: str = ""

    @model_validator(mode="after")
    def _is_whole(self) -> Claim:
        for broken, text in self._rules():
            if broken:
                raise ValueError(text)
        return self

    def _rules(self) -> Iterable[tuple[bool, str]]:
        shapes = (self.value is not None, self.low is not None and self.high is not None, bool(self.values))
        half_range = (self.low is None) != (self.high is None)
        yield sum(shapes) != 1 or half_range, "give exactly one of `value`, `low` with `high`, `values`"
        yield bool(self.values) and self.kind != "setup", "`values` is for settings"
        yield self.bound != "exact" and self.value is None, "a bound needs one `value`"
        yield self.kind != "setup" and not self.tolerance_reason, "a result needs a `tolerance`"
        yield self.kind != "setup" and self.metric not in METRIC_UNITS, f"unknown metric {self.metric!r}"
        yield (self.kind == "derived") != bool(self.arithmetic), "`arithmetic` goes with kind `derived`"
        yield "none" in self.judged_by and len(self.judged_by) > 1, "`none` stands alone in `judged_by`"
        yield self.kind != "setup" and "sim" not in self.judged_by and not self.why, "say `why` sim may not judge"
        yield self.judged_by != ("none",) and self.experiment is None, "who judges needs an `experiment`"
        yield bool(self.contradicts) and not self.note, "`contradicts` needs a `note` that says how"
        if self.experiment is not None:
            pair = (self.experiment.unit, self.unit)
            yield pair[0] != pair[1] and pair not in UNIT_FACTORS, f"no conversion from {pair[0]} to {pair[1]}"

    @property
    def no_effect(self) -> float | None:
        """What "no effect" would read: 1 for a ratio, 0 for a change against a baseline, None for a level."""
        if self.unit == "x":
            return 1.0
        return 0.0 if self.baseline else None

    @property
    def text(self) -> str:
        """The number as a table prints it."""
        if self.value is None:
            body = f"{self.low:g}-{self.high:g}" if not self.values else ", ".join(f"{v:g}" for v in self.values)
        else:
            body = {"exact": "", "at_least": ">= ", "at_most": "<= "}[self.bound] + f"{self.value:g}"
        return f"{body} {self.unit}"


def load_claims(path: Path | None = None) -> tuple[Claim, ...]:
    """Claims in file order, with tolerance classes and stand-in quotations filled in.

    Raises ConfigError for unreadable TOML, unknown keys, broken claims, and ids that are repeated or not there.
    """
    path = CLAIMS_FILE if path is None else path
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"claims file cannot be read: {error}", where=str(path)) from error
    allowed = ("source", "tolerance", "claim")
    for key in raw.keys() - set(allowed):
        raise ConfigError(
            "unknown key", where=str(path), value=key, allowed=allowed, nearest=nearest_match(key, allowed)
        )
    sources = {name: build_model(Source, item, f"{path.name}: source {name}") for name, item in raw["source"].items()}
    classes = {name: build_model(ToleranceClass, item, f"{path.name}: tolerance {name}")
               for name, item in raw["tolerance"].items()}  # fmt: skip
    claims = tuple(_claim(item, sources, classes, path.name) for item in raw.get("claim", []))
    _check_links(claims, path.name)
    return claims


def load_sources(path: Path | None = None) -> dict[str, Source]:
    """Sources by tag, for footnotes."""
    path = CLAIMS_FILE if path is None else path
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return {name: build_model(Source, item, f"{path.name}: source {name}") for name, item in raw["source"].items()}


def _claim(item: Mapping[str, Any], sources: Mapping[str, Source], classes: Mapping[str, ToleranceClass],
           file: str) -> Claim:  # fmt: skip
    where = f"{file}: claim {item.get('id', '(no id)')}"
    filled = dict(item)
    if "tolerance" in item:
        name = item["tolerance"]
        if name not in classes:
            raise ConfigError("unknown tolerance class", where=where, value=name, allowed=classes,
                              nearest=nearest_match(name, classes))  # fmt: skip
        filled["tolerance"], filled["tolerance_reason"] = classes[name].value, classes[name].reason
    for tag in item.get("source", ()):
        if tag not in sources:
            raise ConfigError("unknown source", where=where, value=tag, allowed=sources)
    if "quote" not in item and item.get("kind") != "derived":
        stand_ins = [sources[tag].unavailable for tag in item.get("source", ())]
        if not all(stand_ins):
            raise ConfigError("a claim from a source that we have needs its sentence", where=where, mend="add `quote`")
        filled["quote"] = "; ".join(stand_ins)
    return build_model(Claim, filled, where)


def build_model(model: type[Model], item: Mapping[str, Any], where: str) -> Model:
    """`item` as a model. Raises ConfigError naming `where`, the field, and the nearest known key."""
    try:
        return model.model_validate(item)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        fields = model.model_fields
        if first["type"] == "extra_forbidden":
            raise ConfigError("unknown key", where=where, value=field, allowed=fields,
                              nearest=nearest_match(field, fields)) from error  # fmt: skip
        raise ConfigError(f"{field + ': ' if field else ''}{first['msg']}", where=where) from error


def _check_links(claims: tuple[Claim, ...], file: str) -> None:
    ids = [claim.id for claim in claims]
    for claim in claims:
        where = f"{file}: claim {claim.id}"
        if ids.count(claim.id) > 1:
            raise ConfigError("claim id is used twice", where=where, mend="rename one of them")
        for field, target in (
            *(("contradicts", other) for other in claim.contradicts),
            *(("derived_from", other) for other in claim.derived_from),
            *((("reading_of", claim.reading_of),) if claim.reading_of else ()),
        ):
            if target not in ids or target == claim.id:
                raise ConfigError(f"{field} names no other claim", where=where, value=target,
                                  nearest=nearest_match(target, ids))  # fmt: skip
