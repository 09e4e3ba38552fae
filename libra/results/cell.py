"""A cell: one run of one policy on one workload, named by everything that changes its outcome.

The cell is the unit of launch, resume and store. Two studies that ask for the same run share its identity, so the
study's name is no part of it; the code that produced the outcome is.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

import msgspec

from libra.core.errors import ConfigError, nearest_match, unknown_name
from libra.results.schemas import SCHEMA_VERSION

Value = str | int | float | bool

OVERRIDE_KEYS: dict[str, tuple[str, ...] | None] = {
    "workload": None,
    "policy": None,
    "pipeline": ("kind", "staleness", "in_flight_cap"),
    "cluster": ("network",),
    "sim": None,
    "live": None,
}
"""Heads of override keys; None where the option table of the workload, policy or backend decides what is allowed."""

LENGTH_KEY = "workload.num_steps"
"""How long a run is makes no variant of the system, so tables do not show it among the overrides."""

TRACE_PREFIX = "trace:"


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """`overrides` are (dotted key, value) pairs sorted by key, e.g. (("pipeline.kind", "async"), ("policy.tp", 4)).

    `workload` may be `trace:FILE`; `cluster` and `model` may be TOML files. Build it with `Cell.make`.
    """

    study: str
    workload: str
    cluster: str
    model: str
    policy: str
    backend: str = "sim"
    seed: int = 0
    overrides: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def make(
        cls,
        study: str,
        workload: str,
        cluster: str,
        model: str,
        policy: str,
        *,
        backend: str = "sim",
        seed: int = 0,
        overrides: Mapping[str, Value] | None = None,
    ) -> Cell:
        """A cell with checked, sorted overrides. Raises `ConfigError` for a key that no part of a cell takes."""
        for name, text in (("study", study), ("workload", workload), ("policy", policy), ("backend", backend)):
            if not text:
                raise ConfigError(f"a cell needs a {name}", where="cell", value=text)
        pairs = tuple(sorted((key, _checked(key, value)) for key, value in (overrides or {}).items()))
        return cls(study, workload, cluster, model, policy, backend, seed, pairs)

    def override(self, key: str) -> Value | None:
        """Value of one dotted key; None where it is not overridden."""
        return dict(self.overrides).get(key)

    def section(self, head: str) -> dict[str, Value]:
        """Overrides under one head, without it: `section("policy")` of `policy.tp=4` is `{"tp": 4}`."""
        return {key.partition(".")[2]: value for key, value in self.overrides if key.partition(".")[0] == head}

    def identity(self, code: str) -> str:
        """16 hex digits over all that changes the outcome; `code` is the fingerprint of sources and input files.

        Of a trace or TOML file the name counts here and the content in `code`, so that a store may be moved.
        """
        outcome = {
            "schema": SCHEMA_VERSION,
            "code": code,
            "workload": _portable(self.workload),
            "cluster": _portable(self.cluster),
            "model": _portable(self.model),
            "policy": self.policy,
            "backend": self.backend,
            "seed": self.seed,
            "overrides": [list(pair) for pair in self.overrides],
        }
        text = json.dumps(outcome, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def key(self) -> str:
        """The same cell under any version of the code: what a newer run of it supersedes."""
        return msgspec.json.encode(msgspec.structs.replace(self, study="")).decode()

    @property
    def variant(self) -> str:
        """Overrides as text for tables, e.g. `pipeline.kind=async, policy.tp=4`; "" where there are none.

        The number of steps is left out.
        """
        return ", ".join(f"{key}={show(value)}" for key, value in self.overrides if key != LENGTH_KEY)

    @property
    def label(self) -> str:
        """One readable line: `r2e-gym / libra / qwen3-14b / a800x48 / seed 0 / policy.tp=4`."""
        parts = [_portable(self.workload), self.policy, _portable(self.model), _portable(self.cluster)]
        parts += [] if self.backend == "sim" else [self.backend]
        parts += [f"seed {self.seed}"] + ([self.variant] if self.variant else [])
        return " / ".join(parts)


def show(value: Value) -> str:
    """An override's value as it is typed on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_value(text: str) -> Value:
    """A typed value from the command line: true/false, integer, float, else text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def check_key(key: str, where: str = "override") -> None:
    """Raises `ConfigError` unless `key` is `head.name` of a known head (and of a known name where they are fixed)."""
    head, _, name = key.partition(".")
    if head not in OVERRIDE_KEYS:
        allowed = [f"{known}.*" for known in OVERRIDE_KEYS]
        near = nearest_match(head, OVERRIDE_KEYS)
        raise ConfigError(
            "unknown key", where=where, value=key, allowed=allowed, nearest=f"{near}.{name}" if near and name else near
        )
    names = OVERRIDE_KEYS[head]
    if not name or (names is not None and name not in names):
        known = [f"{head}.{each}" for each in names or ()] or [f"{head}.OPTION"]
        raise unknown_name("key", key, known, where=where)


def _checked(key: str, value: Value) -> Value:
    """Whole floats become integers, so that 2 and 2.0 are one cell."""
    check_key(key)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError("a value must be finite", where=f"override {key}", value=value)
        return int(value) if value.is_integer() else value
    if not isinstance(value, str | int):
        raise ConfigError(
            "a value is a text, a number or a truth value",
            where=f"override {key}",
            value=value,
            mend="one cell a value",
        )
    return value


def _portable(name: str) -> str:
    """A file's name without its folder: `trace:/data/tau.parquet` -> `trace:tau.parquet`; other names as they are."""
    prefix = TRACE_PREFIX if name.startswith(TRACE_PREFIX) else ""
    is_file = bool(prefix) or name.endswith(".toml")
    return prefix + name.removeprefix(prefix).replace("\\", "/").rpartition("/")[2] if is_file else name
