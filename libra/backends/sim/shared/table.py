"""The figures of one live machine, fitted to short runs (`libra fidelity predict`), with their source."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from libra.core.errors import ConfigError


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An engine step takes `step_s + seq_s * sequences + tok_s * prefilled tokens` on cores of its own."""

    step_s: float
    seq_s: float
    tok_s: float


class Trainer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training step takes `fixed_s + tok_s * tokens` on a core of its own."""

    fixed_s: float
    tok_s: float


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds on an idle machine. Tokens of a training step include prompts and observations."""

    source: str
    """Machine, runs and commit behind the figures."""
    cores: float
    """Processes that run at full speed side by side."""
    engine: Engine
    trainer: Trainer
    start_s: float
    """Agent loop's time to start a trajectory."""
    turn_s: float
    """Agent loop's time from a turn's end to what comes next."""
    sync_s: float
    """Weight refresh of all engines."""
    between_s: float
    """From a step's end to the next one's prompts and training: metrics, buffers, polling."""


@functools.lru_cache(maxsize=8)
def read_table(text: str) -> Table:
    """From a file, or from the JSON itself. Raises `ConfigError` for a file that is absent, or no such table."""
    try:
        return msgspec.json.decode(text if text.startswith("{") else Path(text).read_bytes(), type=Table)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"no table of a live machine: {error}", where="sim.table", value=text,
                          mend="`libra fidelity predict` fits them to live cells") from None  # fmt: skip
