"""Named random streams: what a stream may depend on is in its name, so two policies meet the same trajectories.

Seeds depend on (workload, seed) and on what is drawn, never on the policy (common random numbers).
"""

from __future__ import annotations

import hashlib

import numpy as np


def seed_of(*name: object) -> int:
    """128-bit seed of a stream name; equal names give equal seeds on every machine and Python build."""
    text = "\x1f".join(str(part) for part in name)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def stream(*name: object) -> np.random.Generator:
    """Independent generator (Philox) for a stream name such as ("workload", "search-r1", seed, group)."""
    return np.random.Generator(np.random.Philox(key=seed_of(*name)))
