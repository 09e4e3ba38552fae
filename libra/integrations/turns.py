"""What a framework tells a session: turns that want engines, what became of them, ends and steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from libra.core.records import ToolReturn, TrajectoryStatus, VersionSpan
from libra.results.schemas import TrajectoryRow, VersionRow


class Turn(msgspec.Struct, frozen=True):
    """A turn that wants an engine. `key` names the trajectory; `tool` is what came back since its last turn.

    `is_resumed`: the same turn once more, after a weight refresh or the loss of its engine.
    """

    key: str
    prompt_id: str
    group: str
    sample: int
    step: int
    context_tok: int
    tool: ToolReturn | None = None
    is_resumed: bool = False


class TurnDone(msgspec.Struct, frozen=True):
    """What an engine did for a turn. `cached_tok` were found in its prefix cache as it began; `refilled_tok` of context
    were prefilled once more, after a weight refresh or the loss of an engine.

    `queue_s` is the time in the engine's queue, summed over tries; None where it does not say.
    """

    key: str
    spans: tuple[VersionSpan, ...]
    cached_tok: int = 0
    num_preemptions: int = 0
    refilled_tok: int = 0
    queue_s: float | None = None


class Ended(msgspec.Struct, frozen=True):
    key: str
    status: TrajectoryStatus
    reward: float | None = None


class StepDone(msgspec.Struct, frozen=True):
    """A training step and its weight refresh. `keys` were trained, starting from policy `version`; times in seconds."""

    step: int
    keys: tuple[str, ...]
    version: int
    train_s: float
    sync_s: float
    wait_rollout_s: float


def joined(spans: Sequence[VersionSpan]) -> tuple[VersionSpan, ...]:
    """Neighbours of one version as one: a turn may lose its engine without new weights."""
    found: list[VersionSpan] = []
    for span in spans:
        if found and found[-1].version == span.version:
            found[-1] = VersionSpan(span.version, found[-1].num_tok + span.num_tok)
        else:
            found.append(span)
    return tuple(found)


@dataclass
class Live:
    """A trajectory from its first turn to the step that trains it."""

    id: int
    turn: Turn
    group: int
    start_s: float
    instance: int = -1
    first_instance: int = -1
    first_bucket: int = -1
    last_bucket: int = -1
    num_turns: int = 0
    prompt_tok: int = 0
    generated_tok: int = 0
    observed_tok: int = 0
    payload_tok: int = 0
    """Of the last tool return: in the context, but in no engine's cache yet."""
    tool_s: float = 0.0
    num_moves: int = 0
    moved_tok: int = 0
    prefilled_tok: int = 0
    cached_tok: int = 0
    num_preemptions: int = 0
    queue_s: float | None = 0.0
    """None as soon as one turn's is unknown."""
    spans: list[tuple[VersionSpan, ...]] = field(default_factory=list)
    """By turn."""
    end_s: float = 0.0
    status: TrajectoryStatus = "aborted"
    reward: float | None = None

    @property
    def total_tok(self) -> int:
        return self.prompt_tok + self.generated_tok + self.observed_tok

    @property
    def versions(self) -> list[int]:
        return [span.version for turn in self.spans for span in turn]

    def version_rows(self) -> tuple[VersionRow, ...]:
        return tuple(
            VersionRow(self.id, turn, span.version, span.num_tok)
            for turn, spans in enumerate(self.spans)
            for span in spans
        )

    def row(self, trained_step: int, version_trained: int) -> TrajectoryRow:
        versions = self.versions or [-1]
        return TrajectoryRow(
            trajectory=self.id, prompt_id=self.turn.prompt_id, group=self.group, sample=self.turn.sample,
            meant_step=self.turn.step, trained_step=trained_step, status=self.status, prompt_tok=self.prompt_tok,
            generated_tok=self.generated_tok, observed_tok=self.observed_tok, num_turns=self.num_turns,
            tool_s=self.tool_s, reward=self.reward, start_s=self.start_s, end_s=self.end_s,
            first_instance=self.first_instance, last_instance=self.instance, first_bucket=self.first_bucket,
            last_bucket=self.last_bucket, num_moves=self.num_moves, moved_tok=self.moved_tok,
            prefilled_tok=self.prefilled_tok, cached_tok=self.cached_tok, num_preemptions=self.num_preemptions,
            queue_s=self.queue_s, version_start=min(versions), version_end=max(versions),
            version_trained=version_trained,
        )  # fmt: skip
