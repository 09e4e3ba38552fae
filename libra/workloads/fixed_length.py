"""Trajectories that are all alike: for growth curves, the tensor-parallel study and checks against closed forms."""

from __future__ import annotations

from pydantic import Field

from libra.core.errors import ConfigError
from libra.core.records import ToolReturn, Trajectory, Turn
from libra.core.registry import Options, WorkloadSpec
from libra.workloads.base import PROFILE_GROUP, Parameter, document
from libra.workloads.synthetic import Sources

NAME = "fixed-length"


class FixedLengthOptions(Options):
    """`length_tok` is prompt and generated tokens; tool returns are empty and take `tool_s`."""

    length_tok: int = Field(default=8_192, gt=0)
    prompt_tok: int = Field(default=64, gt=0)
    batch: int = Field(default=512, gt=0)
    group_size: int = Field(default=16, gt=0)
    num_steps: int = Field(default=10, gt=0)
    turns: int = Field(default=1, gt=0)
    tool_s: float = Field(default=1.0, ge=0)


SOURCES: Sources = {
    "length_tok": ("assumed", "A setting, not a measurement; the paper's studies span 1K to 32K tokens."),
    "prompt_tok": ("assumed", "A setting: small, so that length means generated length (x34 from 1K to 32K)."),
    "batch": ("reported", "The articles' tensor-parallel study: batch size 512."),
    "group_size": ("reported", "The articles on the paper: 16 samples per prompt."),
    "num_steps": ("assumed", "All steps are alike; a few are enough."),
    "turns": ("assumed", "A setting, not a measurement."),
    "tool_s": ("assumed", "A setting; has an effect with two turns or more."),
}


class FixedLength:
    """A `Workload`. Equal for every seed. Raises `ConfigError` for lengths or batches that do not work out."""

    name = NAME
    warnings: tuple[str, ...] = ()

    def __init__(self, options: FixedLengthOptions, max_context_tok: int) -> None:
        _check(options, max_context_tok)
        self.options, self.max_context_tok = options, max_context_tok
        self.batch, self.group_size, self.num_steps = options.batch, options.group_size, options.num_steps
        each, rest = divmod(options.length_tok - options.prompt_tok, options.turns)
        tool = ToolReturn("wait", 0, "ok", options.tool_s)
        last = options.turns - 1
        self._turns = tuple(Turn(each + (k < rest), tool if k < last else None) for k in range(options.turns))

    def group(self, index: int) -> tuple[Trajectory, ...]:
        """See `Workload`; every group has a prompt of its own."""
        return self._group(index, f"{self.name}:{index}")

    def profile(self, num_groups: int) -> tuple[Trajectory, ...]:
        """See `Workload`."""
        groups = (self._group(PROFILE_GROUP + k, f"{self.name}:profile-{k}") for k in range(num_groups))
        return tuple(trajectory for group in groups for trajectory in group)

    def parameters(self) -> tuple[Parameter, ...]:
        """See `Workload`."""
        return document(self.options, SOURCES)

    def _group(self, index: int, prompt_id: str) -> tuple[Trajectory, ...]:
        prompt_tok = self.options.prompt_tok
        return tuple(Trajectory(prompt_id, index, k, prompt_tok, self._turns) for k in range(self.group_size))


def _check(options: FixedLengthOptions, max_context_tok: int) -> None:
    where = f"workload {NAME}"
    if options.batch % options.group_size:
        raise ConfigError(
            "option 'batch' is no multiple of the group size",
            where=where,
            value=options.batch,
            mend=f"choose a multiple of {options.group_size}, or another `group_size`",
        )
    if options.length_tok > max_context_tok:
        raise ConfigError(
            f"option 'length_tok' is beyond the context limit of {max_context_tok:,} tokens",
            where=where,
            value=options.length_tok,
            mend="lower it, or choose a model with a longer context limit",
        )
    if options.length_tok < options.prompt_tok + options.turns:
        raise ConfigError(
            f"a prompt of {options.prompt_tok} tokens and {options.turns} turns of at least one do not fit",
            where=where,
            value=options.length_tok,
            mend="raise `length_tok`, or lower `prompt_tok` or `turns`",
        )


def build(options: FixedLengthOptions, seed: int, max_context_tok: int) -> FixedLength:
    """For `WorkloadSpec`; the seed changes nothing."""
    return FixedLength(options, max_context_tok)


WORKLOAD = WorkloadSpec(
    name=NAME,
    summary="Every trajectory of one length: growth curves and the tensor-parallel study",
    build=build,
    options=FixedLengthOptions,
)
