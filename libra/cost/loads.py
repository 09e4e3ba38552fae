"""What an instance is asked to serve: sums over its requests and the one that ends last, for all of them, by batch, or
for every interval of lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from libra.cost.engine import Engine
from libra.cost.requests import Array, Batches, Requests

TINY = 1e-12


class Decline(NamedTuple):
    """A batch that starts together, from one request's end to the next: decode steps between, and requests that are
    left then; arrays of shape [num, points]."""

    steps: Array
    left: Array


@dataclass(frozen=True)
class Load:
    """Sums over a set of requests, and the request that ends last; arrays of one shape, or scalars."""

    num: Any
    generated_tok: Any
    traffic_tok: Any
    prefill_tok: Any
    prefill_pairs: Any
    context_tok: Any
    returned_tok: Any
    tool_s: Any
    longest: Any
    """Index of the point with the largest serial time."""
    upper_tok: Any
    """Longest total."""
    decline: Decline | None = None
    """Where the decode step is no linear function of the batch, how that shrinks."""


SUMMED = ("generated_tok", "traffic_tok", "prefill_tok", "prefill_pairs", "context_tok", "returned_tok", "tool_s")


def serial_parts(engine: Engine, requests: Requests) -> tuple[Array, Array]:
    """Per point on an idle instance: its own KV and prefill time, and its step count (turns start with a prefill)."""
    own_s = engine.kv_s_per_tok * requests.traffic_tok + engine.prefill_s(requests.prefill_tok, requests.prefill_pairs)
    return own_s, requests.generated_tok + requests.num_turns


def serial_s(engine: Engine, requests: Requests) -> Array:
    """Serial bound of each point: every token waits for the one before, and every turn for its tool."""
    own_s, num_steps = serial_parts(engine, requests)
    return own_s + num_steps * engine.step_s(1.0) + requests.tool_s


def whole_load(engine: Engine, requests: Requests) -> Load:
    """All points together."""
    sums: dict[str, Any] = {name: requests.sum(name) for name in SUMMED}
    longest = int(np.argmax(serial_s(engine, requests)))
    return Load(num=requests.batch, longest=longest, upper_tok=requests.upper_tok.max(), **sums)


def batch_loads(engine: Engine, batches: Batches, staleness: int = 0) -> Load:
    """Every batch by itself: arrays of shape [num]. With `staleness`, sums are the mean over a batch and as many mean
    ones, which are under way beside it; the longest request stays its own."""
    requests = batches.requests

    def beside(column: Array) -> Array:
        own = batches.sums(column)
        if not staleness:
            return own
        return np.asarray((own + staleness * own.mean()) / (staleness + 1))

    return Load(
        num=beside(np.ones(len(requests))),
        longest=batches.largest(serial_s(engine, requests)),
        upper_tok=requests.upper_tok[batches.largest(requests.upper_tok)],
        decline=decline_of(batches) if engine.model.is_moe and not staleness else None,
        **{name: beside(getattr(requests, name)) for name in SUMMED},
    )


def decline_of(batches: Batches) -> Decline:
    """Of every batch by itself; tools, which make requests end in another order, are not looked at."""
    requests = batches.requests
    steps, weight = (each.reshape(batches.num, -1) for each in (requests.generated_tok, requests.weight))
    order = np.argsort(steps, axis=1)
    steps, weight = (np.take_along_axis(each, order, axis=1) for each in (steps, weight))
    left = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    return Decline(np.where(left > TINY, np.diff(steps, axis=1, prepend=0.0), 0.0), left)


def interval_loads(engine: Engine, requests: Requests) -> Load:
    """Every interval at once by prefix sums: entry [j, i] holds points j to i - 1; entries with i <= j are void."""
    n = len(requests)

    def between(column: Array) -> Array:
        running = np.concatenate([[0.0], np.cumsum(requests.weight * column)])
        return running[None, :] - running[:, None]

    serial = serial_s(engine, requests)
    from_low = np.where(np.tri(n, k=-1, dtype=bool), -np.inf, serial)
    is_longest = from_low >= np.maximum.accumulate(from_low, axis=1)
    longest = np.zeros((n + 1, n + 1), dtype=int)
    longest[:n, 1:] = np.maximum.accumulate(np.where(is_longest, np.arange(n), 0), axis=1)
    sums: dict[str, Any] = {name: between(getattr(requests, name)) for name in SUMMED}
    upper_tok = np.concatenate([[0.0], requests.upper_tok])[None, :]
    return Load(num=between(np.ones(n)), longest=longest, upper_tok=upper_tok, **sums)
