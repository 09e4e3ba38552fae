"""Knobs of the simulated engines and of the run, as cell overrides `sim.*`; defaults are vLLM V1's unless said."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable
from typing import Literal

import msgspec
from pydantic import Field, ValidationInfo, field_validator

from libra.backends.sim.constants import Constants, folds, load_constants
from libra.core.errors import nearest_match
from libra.core.registry import Options


class SimOptions(Options):
    """Engine settings that every policy shares. They are part of a cell's identity."""

    max_num_seqs: int = Field(default=256, ge=1)
    """Sequences that an instance decodes at once."""
    max_batched_tok: int = Field(default=8192, ge=16)
    """Token budget of one engine step, decode and prefill chunks together."""
    async_lag_steps: int = Field(default=0, ge=0, le=1)
    """Steps by which a turn that reaches a busy engine starts later because the next step is scheduled already: 0 in
    the vLLM (0.11) that the constants come from, 1 where it schedules asynchronously by default. What that hides of the
    engine's overhead is not known."""
    block_tok: int = Field(default=16, ge=1)
    """Tokens of a KV block; prefix hits are whole blocks."""
    kv_transfer: bool = True
    """Whether engines have a KV connector; without one every move is a re-prefill."""
    after_sync: Literal["recompute", "keep"] = "recompute"
    """KV of turns in flight at a weight update: dropped and re-prefilled (AReaL), or kept."""
    cuda_graphs: bool = True
    """Whether engines replay CUDA graphs; without (`enforce_eager`) the CPU launches each kernel of each layer."""
    keep_prefixes: bool = False
    """Whether cached prefixes outlive a weight update, computed by older weights (no engine's default)."""
    profile_groups: int = Field(default=16, ge=1)
    """Groups of the profiling run that planners see at the start."""
    serving_fold: str = ""
    """Serving constants fitted without this group of measured rows (`libra validate`); empty: all rows."""
    training_fold: str = ""
    """Training constants fitted without this group; empty: all rows."""
    replace: str = ""
    """Constants of the timing truth to replace, e.g. `train_fixed_s=18;backward_compute_share=0.258`."""
    engine: Literal["fast", "stepwise", "compiled"] = "fast"
    """Closed forms between events; one event a step, the oracle of the former, hundreds of times slower; or the closed
    forms compiled by numba (extra `fast`), which gives the same bits."""
    table: str = ""
    """File of a live machine's measured times (`sim.shared`): they stand for the timing truth, and engines, trainer and
    agent loop share its cores. Empty: the constants."""
    check: bool = False
    """Hold the run to its laws while it runs: KV, tokens, trajectories, causality, staleness, GPUs."""

    @field_validator("serving_fold", "training_fold")
    @classmethod
    def _is_a_fold(cls, value: str, info: ValidationInfo) -> str:
        known = list(folds()[str(info.field_name).removesuffix("_fold")])
        if value and value not in known:
            raise ValueError(f"no such group of measured rows{_meant(value, known)}; allowed: {', '.join(known)}")
        return value

    @field_validator("replace")
    @classmethod
    def _are_constants(cls, value: str) -> str:
        _replaced(value)
        return value

    def constants(self, own: Constants | None = None, fitted: Container[str] = ()) -> Constants:
        """The timing truth's constants in the world that these options describe.

        `own` are the GPU's; those `fitted` to its own table are no matter of the folds, which are A100's.
        """
        folded = folds()["serving"].get(self.serving_fold, {}) | folds()["training"].get(self.training_fold, {})
        changed = {name: value for name, value in folded.items() if name not in fitted}
        return msgspec.structs.replace(own or load_constants(), **changed | _replaced(self.replace))


def _replaced(text: str) -> dict[str, float]:
    """Names and values; ValueError for a name that is no single constant, or a value that is no positive number."""
    shipped = {
        name: value for name, value in msgspec.structs.asdict(load_constants()).items() if isinstance(value, float)
    }
    changed: dict[str, float] = {}
    for part in filter(None, text.split(";")):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in shipped:
            raise ValueError(f"no constant {name!r}{_meant(name, shipped)}; they stand in constants.toml")
        try:
            changed[name] = float(number)
        except ValueError:
            changed[name] = math.nan
        if not 0.0 < changed[name] < math.inf:
            raise ValueError(
                f"{name} is {number or 'missing'}; allowed: a positive number, as in `{name}={shipped[name]:g}`"
            )
    return changed


def _meant(value: str, known: Iterable[str]) -> str:
    near = nearest_match(value, known)
    return f", meant {near!r}?" if near else ""
