"""Shape of `paper_figures/published.toml`: step times as other projects printed them. Absent fields stay absent."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from analysis.claim_model import StrictModel, build_model
from libra.core.errors import ConfigError, nearest_match

PUBLISHED_FILE = Path(__file__).resolve().parent.parent / "paper_figures" / "published.toml"

BYTES_PER_PARAMETER = 2.0
"""bf16, in which weights are sent to rollout engines."""

NEEDED_TO_SIMULATE = {
    "hardware": "hardware",
    "model": "model",
    "batch_trajectories": "batch",
    "mean_tok": "lengths",
}
"""Fields that a simulation needs, and what to call them. A cap on the response says nothing about lengths."""

Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(gt=0)]


class Source(StrictModel):
    """Where a row was read."""

    title: str
    url: str


class Setting(StrictModel):
    """What a simulation would need; a row tells which of it the source does not give."""

    source: str
    hardware: str | None = None
    model: str | None = None
    batch_trajectories: Count | None = None
    mean_tok: Positive | None = None
    max_response_tok: Count | None = None

    @property
    def not_simulable(self) -> str:
        """Empty when all is known, else what is missing."""
        missing = [name for field, name in NEEDED_TO_SIMULATE.items() if getattr(self, field) is None]
        return f"not simulable: missing {', '.join(missing)}" if missing else ""


class Sync(Setting):
    """Stages of a synchronous run. Without GPU counts only the split that it ran on can be predicted."""

    colocated: bool
    overlapped: bool = False
    """The run is asynchronous already, and `generation_s` runs beside the rest of the step."""
    rollout_gpus: Count | None = None
    train_gpus: Count | None = None
    step_s: Positive | None = None
    generation_s: Positive
    old_log_prob_s: NonNegative = 0.0
    reference_s: NonNegative = 0.0
    update_s: Positive
    note: str = ""

    @property
    def stages_s(self) -> float:
        """Sum of the stages."""
        return self.generation_s + self.old_log_prob_s + self.reference_s + self.update_s


class Async(StrictModel):
    """An overlapped run against a `Sync`. Stages that are absent were not run or not printed."""

    id: str
    sync: str
    rollout_gpus: Count | None = None
    train_gpus: Count | None = None
    lent_gpus: Annotated[int, Field(ge=0)] = 0
    switch_s: NonNegative = 0.0
    staleness: NonNegative | None = None
    step_s: Positive | None = None
    generation_wait_s: NonNegative | None = None
    old_log_prob_s: NonNegative | None = None
    reference_s: NonNegative | None = None
    update_s: Positive | None = None
    total_speedup: Annotated[tuple[float, ...], Field(strict=False)] = ()
    note: str = ""

    @property
    def training_s(self) -> float | None:
        """Update, reference pass and, where it was run, the pass for old log-probabilities."""
        if self.update_s is None:
            return None
        return self.update_s + (self.reference_s or 0.0) + (self.old_log_prob_s or 0.0)


class Decode(Setting):
    """One rank of one generation step."""

    id: str
    seconds: Positive
    total_tok: Count
    longest_tok: Count


class Weights(Setting):
    """Time to bring one copy of new weights to the rollout pool, on the plain path and on a faster one."""

    id: str
    billion_parameters: Positive
    rollout_gpus: Count
    train_gpus: Count
    plain_s: Positive
    faster_s: Positive

    def effective_gb_s(self, seconds: float) -> float:
        """Bytes of one copy over the time of the sync, in GB/s."""
        return self.billion_parameters * BYTES_PER_PARAMETER / seconds


@dataclass(frozen=True, slots=True)
class Published:
    """The file as it stands."""

    sources: Mapping[str, Source]
    sync: Mapping[str, Sync]
    overlapped: tuple[Async, ...]
    decode: tuple[Decode, ...]
    weights: tuple[Weights, ...]


def load_published(path: Path | None = None) -> Published:
    """Raises ConfigError for unreadable TOML, unknown keys, repeated ids, and names that are not there."""
    path = PUBLISHED_FILE if path is None else path
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"published tables cannot be read: {error}", where=str(path)) from error
    allowed = ("source", "sync", "async", "decode", "weights")
    for key in raw.keys() - set(allowed):
        near = nearest_match(key, allowed)
        raise ConfigError("unknown key", where=str(path), value=key, allowed=allowed, nearest=near)
    file = path.name
    found = Published(
        {name: build_model(Source, item, f"{file}: source {name}") for name, item in raw.get("source", {}).items()},
        {name: build_model(Sync, item, f"{file}: sync {name}") for name, item in raw.get("sync", {}).items()},
        tuple(build_model(Async, item, f"{file}: async {item.get('id')}") for item in raw.get("async", ())),
        tuple(build_model(Decode, item, f"{file}: decode {item.get('id')}") for item in raw.get("decode", ())),
        tuple(build_model(Weights, item, f"{file}: weights {item.get('id')}") for item in raw.get("weights", ())),
    )
    _check_names(found, file)
    return found


def _check_names(found: Published, file: str) -> None:
    settings: Iterable[Setting] = (*found.sync.values(), *found.decode, *found.weights)
    for setting in settings:
        if setting.source not in found.sources:
            raise ConfigError("unknown source", where=file, value=setting.source, allowed=found.sources)
    for row in found.overlapped:
        if row.sync not in found.sync:
            near = nearest_match(row.sync, found.sync)
            raise ConfigError("unknown sync", where=f"{file}: async {row.id}", value=row.sync, nearest=near)
    ids = Counter([*(r.id for r in found.overlapped), *(r.id for r in found.decode), *(r.id for r in found.weights)])
    for name, times in ids.items():
        if times > 1:
            raise ConfigError("id is used twice", where=file, value=name)
