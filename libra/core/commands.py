"""What a policy may ask for. Every command is acknowledged by an event (`Placed`, `AllocationChanged`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from libra.core.plan import Move, Plan


class Why(msgspec.Struct, frozen=True, omit_defaults=True):
    """The evidence behind a routing decision, kept for `decisions.parquet`.

    `level` names where the estimate came from (for C-MLFQ: `prefix`, `prompt`, `shared`, `none`), `mean_tok` and
    `p90_tok` the predicted total length (context + remaining), `evidence` the number of samples behind it.
    """

    level: str = "none"
    mean_tok: float = 0.0
    p90_tok: float = 0.0
    evidence: float = 0.0
    bucket: int = -1


class Place(msgspec.Struct, frozen=True, omit_defaults=True, tag="place"):
    """Run the next turn of `trajectory` on `instance`. Naming another instance than the last one is a migration.

    `kv` says how the cached context gets there: the cheaper by the cluster's figures, or one of the two.
    """

    trajectory: int
    instance: int
    kv: Literal["auto", "transfer", "recompute"] = "auto"
    why: Why | None = None


class ApplyPlan(msgspec.Struct, frozen=True, tag="plan"):
    """Make the allocation equal to `plan` at the next safe point; free of charge only as answer to `RunStart`."""

    plan: Plan


class Switch(msgspec.Struct, frozen=True, tag="switch"):
    """Move hybrid replicas between rollout and training at the next safe point."""

    moves: tuple[Move, ...]


Command = Place | ApplyPlan | Switch
