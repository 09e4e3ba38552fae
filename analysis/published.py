"""Published step tables beside an overlap model that knows nothing but the synchronous stage times.

Model: training (update, reference pass, and the pass for old log-probabilities where it is kept) takes time inversely
proportional to its GPUs. Generation is either bound by its longest trajectories, and does not change with the number of
GPUs, or bound by throughput, and is inversely proportional to them: the truth lies between, so a prediction is a range.
Overlapped, a step takes the longer of the two; weight sync, which the step tables do not print, is left out.
Lent trainer GPUs generate from the end of training to the end of the step, less the switch.

Where it fails, as the rows show: training at these batch sizes speeds up with GPUs far less than in proportion, and
streaming with partial rollouts hides the longest trajectories behind the next step, so most fully asynchronous rows lie
below the range. `PublishedRow.training_exponent` (1 would be in proportion) and `stages_share` (1 when the printed
stages add up to the printed step) tell which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from analysis.published_model import Async, Decode, Published, Sync, Weights, load_published

SPLIT_GRANULES = 16
"""Splits are tried in sixteenths of the pool, at least one GPU: finer than any published split; a node of 8 at 128."""

Position = Literal["inside", "below", "above", "not observed", "not predicted"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """Step time under one assumption; errors are relative to the observed step, for either end of the range."""

    assumption: str
    low_s: float
    high_s: float
    applies: bool
    """Whether the published run did what is assumed; others are shown for comparison."""
    error_low: float | None = None
    error_high: float | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """The split that the model would choose if generation were bound as `bound_by` says."""

    bound_by: Literal["tail", "throughput"]
    rollout_gpus: int
    train_gpus: int
    step_s: float
    speedup: float
    """Over the synchronous step."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One line of the table: theirs, ours, and why the two differ. None where a source gives too little."""

    id: str
    table: Literal["overlap", "decode", "weights"]
    source: str
    url: str
    hardware: str
    model: str
    split: str
    """Rollout GPUs : training GPUs, "+ n lent" where trainer GPUs also generate."""
    before_s: float | None
    """Synchronous step (or the sum of its stages), or the plain path."""
    observed_s: float | None
    predictions: tuple[Prediction, ...]
    position: Position
    """Where the observed step lies against the range that applies."""
    balanced: tuple[Split, ...]
    bound_speedup: float | None
    """Most that overlapping could give by this model, every choice in its favour."""
    step_speedup: float | None
    """before / observed."""
    total_speedup: tuple[float, ...]
    """As printed, from the total time after successive numbers of steps: it need not agree with `step_speedup`."""
    stages_share_before: float | None
    stages_share: float | None
    training_exponent: float | None
    not_simulable: str
    note: str


def predict_rows(path: Path | None = None) -> list[PublishedRow]:
    """All rows in file order: overlap, decode, weights. Raises ConfigError as `load_published` does."""
    published = load_published(path)
    return [
        *(_overlap_row(published, row) for row in published.overlapped),
        *(_decode_row(published, row) for row in published.decode),
        *(_weights_row(published, row) for row in published.weights),
    ]


def _overlap_row(published: Published, after: Async) -> PublishedRow:
    before = published.sync[after.sync]
    source = published.sources[before.source]
    before_s = before.step_s or before.stages_s
    predictions = tuple(_with_errors(item, after.step_s) for item in _overlap(before, after))
    balanced = _balanced(before, after, before_s)
    best_s = min([split.step_s for split in balanced] + [item.low_s for item in predictions if item.applies])
    return PublishedRow(
        id=after.id, table="overlap", source=source.title, url=source.url,
        hardware=before.hardware or "", model=before.model or "", split=_split_text(after),
        before_s=before_s, observed_s=after.step_s, predictions=predictions,
        position=_position(predictions, after.step_s), balanced=balanced, bound_speedup=before_s / best_s,
        step_speedup=before_s / after.step_s if after.step_s else None, total_speedup=after.total_speedup,
        stages_share_before=before.stages_s / before.step_s if before.step_s and not before.overlapped else None,
        stages_share=_stages_share(after), training_exponent=_training_exponent(before, after),
        not_simulable=before.not_simulable, note=" ".join(text for text in (before.note, after.note) if text),
    )  # fmt: skip


def _overlap(before: Sync, after: Async) -> list[Prediction]:
    rollout_scale = _scale(before.rollout_gpus, after.rollout_gpus)
    train_scale = _scale(before.train_gpus, after.train_gpus)
    generation = sorted((before.generation_s, before.generation_s * rollout_scale))
    kept = after.old_log_prob_s is not None
    choices = [("old log-probabilities not recomputed", 0.0, not kept)]
    if before.old_log_prob_s > 0.0:
        choices.insert(0, ("old log-probabilities recomputed", before.old_log_prob_s, kept))
    found = []
    for assumption, old_log_prob_s, applies in choices:
        train_s = (before.update_s + before.reference_s + old_log_prob_s) * train_scale
        low_s, high_s = (max(stage_s, train_s) for stage_s in generation)
        if after.lent_gpus:
            assumption = f"{assumption}, {after.lent_gpus} GPUs lent"
            low_s, high_s = _lent_step_s(before, after, train_s), high_s + after.switch_s
        found.append(Prediction(assumption, low_s, high_s, applies))
    return found


def _lent_step_s(before: Sync, after: Async, train_s: float) -> float:
    """Step s with generation bound by throughput: standalone GPUs work all of it, lent ones s - train - switch."""
    assert before.rollout_gpus is not None and after.rollout_gpus is not None, "lending needs GPU counts"
    work_gpu_s = before.generation_s * before.rollout_gpus
    alone_s = work_gpu_s / after.rollout_gpus
    if alone_s <= train_s:
        return train_s
    lent_gpu_s = after.lent_gpus * (train_s + after.switch_s)
    return (work_gpu_s + lent_gpu_s) / (after.rollout_gpus + after.lent_gpus)


def _balanced(before: Sync, after: Async, before_s: float) -> tuple[Split, ...]:
    """Best split of the same pool if generation is tail-bound, and if it is throughput-bound."""
    if None in (before.rollout_gpus, before.train_gpus, after.rollout_gpus, after.train_gpus):
        return ()
    assert before.rollout_gpus and before.train_gpus and after.rollout_gpus and after.train_gpus
    pool = after.rollout_gpus + after.train_gpus
    granule = max(1, pool // SPLIT_GRANULES)
    kept_s = before.old_log_prob_s if after.old_log_prob_s is not None else 0.0
    train_gpu_s = (before.update_s + before.reference_s + kept_s) * before.train_gpus
    generation_gpu_s = before.generation_s * before.rollout_gpus
    found = []
    for bound_by in ("tail", "throughput"):
        options = []
        for rollout in range(granule, pool, granule):
            generation_s = before.generation_s if bound_by == "tail" else generation_gpu_s / rollout
            # Of equal steps the one with most rollout GPUs: a tail-bound stage is never quite independent of them.
            options.append((max(generation_s, train_gpu_s / (pool - rollout)), -rollout))
        step_s, rollout = min(options)
        found.append(Split(bound_by, -rollout, pool + rollout, step_s, before_s / step_s))
    return tuple(found)


def _decode_row(published: Published, rank: Decode) -> PublishedRow:
    """Each rank from the seconds a token of the other ranks of its step."""
    source = published.sources[rank.source]
    others = [other for other in published.decode if other.source == rank.source and other.id != rank.id]
    by_longest = [other.seconds / other.longest_tok * rank.longest_tok for other in others]
    by_total = [other.seconds / other.total_tok * rank.total_tok for other in others]
    predictions = tuple(
        _with_errors(Prediction(name, min(times), max(times), applies), rank.seconds)
        for name, times, applies in (
            ("time follows the longest response", by_longest, True),
            ("time follows the total tokens", by_total, False),
        )
        if times
    )
    return PublishedRow(
        id=rank.id, table="decode", source=source.title, url=source.url,
        hardware=rank.hardware or "", model=rank.model or "", split="", before_s=None, observed_s=rank.seconds,
        predictions=predictions, position=_position(predictions, rank.seconds), balanced=(), bound_speedup=None,
        step_speedup=None, total_speedup=(), stages_share_before=None, stages_share=None, training_exponent=None,
        not_simulable=rank.not_simulable, note="",
    )  # fmt: skip


def _weights_row(published: Published, row: Weights) -> PublishedRow:
    """No prediction without the link; the effective bandwidth bounds what a change of split costs."""
    source = published.sources[row.source]
    plain, faster = row.effective_gb_s(row.plain_s), row.effective_gb_s(row.faster_s)
    return PublishedRow(
        id=row.id, table="weights", source=source.title, url=source.url, hardware=row.hardware or "",
        model=row.model or "", split=f"{row.rollout_gpus}:{row.train_gpus}", before_s=row.plain_s,
        observed_s=row.faster_s, predictions=(), position="not predicted", balanced=(), bound_speedup=None,
        step_speedup=row.plain_s / row.faster_s, total_speedup=(), stages_share_before=None, stages_share=None,
        training_exponent=None, not_simulable="not simulable: missing link bandwidth",
        note=f"One copy of the weights at {plain:.3g} GB/s, then at {faster:.3g} GB/s.",
    )  # fmt: skip


def _with_errors(found: Prediction, observed_s: float | None) -> Prediction:
    if observed_s is None:
        return found
    low, high = found.low_s / observed_s - 1.0, found.high_s / observed_s - 1.0
    return Prediction(found.assumption, found.low_s, found.high_s, found.applies, low, high)


def _position(predictions: tuple[Prediction, ...], observed_s: float | None) -> Position:
    if observed_s is None:
        return "not observed"
    applying = [item for item in predictions if item.applies]
    if not applying:
        return "not predicted"
    if observed_s < min(item.low_s for item in applying):
        return "below"
    return "above" if observed_s > max(item.high_s for item in applying) else "inside"


def _stages_share(after: Async) -> float | None:
    if after.step_s is None or after.training_s is None or after.generation_wait_s is None:
        return None
    return (after.generation_wait_s + after.training_s) / after.step_s


def _training_exponent(before: Sync, after: Async) -> float | None:
    """Exponent a of training time proportional to GPUs^-a between the two runs, over the stages that both have."""
    scale = _scale(before.train_gpus, after.train_gpus)
    if after.training_s is None or scale == 1.0:
        return None
    kept_s = before.old_log_prob_s if after.old_log_prob_s is not None else 0.0
    return math.log(after.training_s / (before.update_s + before.reference_s + kept_s)) / math.log(scale)


def _scale(before_gpus: int | None, after_gpus: int | None) -> float:
    """Factor on a stage's time if it is inversely proportional to GPUs; 1 when the source gives no counts."""
    return before_gpus / after_gpus if before_gpus and after_gpus else 1.0


def _split_text(after: Async) -> str:
    if after.rollout_gpus is None or after.train_gpus is None:
        return ""
    return f"{after.rollout_gpus}:{after.train_gpus}" + (f" + {after.lent_gpus} lent" if after.lent_gpus else "")
