"""How this package is compiled, and where the machine code is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import config as numba_config

config: Any = numba_config

HERE = Path(__file__).parent
FILES = (*sorted(HERE.glob("*.py")), HERE.parent / "truth_ops.py")
SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in FILES)).hexdigest()[:16]
"""numba notices changes of a function's own file, not of the files whose functions it calls: each version of these
files has a folder of its own."""

OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}
"""No fastmath: it would reorder float operations. No runtime of numba's (`_nrt`): nothing here makes an array, and
counting the references to the seven there are takes three quarters of the time."""


def _cache_folder() -> Path | None:
    """Where machine code of these sources is kept: numba's own setting, beside the package, or in the user's home. None
    where nothing can be written; numba's fallback would know no versions."""
    given = [Path(config.CACHE_DIR)] if config.CACHE_DIR else []
    for folder in (*given, HERE / "__pycache__", Path.home() / ".cache" / "libra-bench"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder / f"compiled-{SOURCES}"
    return None


FOLDER = _cache_folder()


def compiled(function: Callable[..., Any]) -> Any:
    """Compile on the first call and keep the machine code."""
    before, config.CACHE_DIR = config.CACHE_DIR, str(FOLDER or "")
    try:
        return njit(cache=FOLDER is not None, **OPTIONS)(function)
    finally:
        config.CACHE_DIR = before
