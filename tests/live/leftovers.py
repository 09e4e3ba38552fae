"""What a job's parts put into the system's folder for temporary files."""

from __future__ import annotations

import tempfile
from pathlib import Path

SOCKET = "-".join("?" * length for length in (8, 4, 4, 4, 12))
"""vLLM's, named by a UUID."""
NAMES = ("libra-*", "ray/session_[0-9]*", "ckpt_*.lock", "vllm_dist_*", SOCKET)


def temporary() -> set[Path]:
    """What is there now, whoever left it."""
    return {path for name in NAMES for path in Path(tempfile.gettempdir()).glob(name)}
