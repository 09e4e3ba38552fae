"""The verl release that this attachment was written against; another one is refused, not guessed at."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from libra.core.errors import ConfigError

VERL = "0.9.1"
"""Extension points moved in every release so far (`tests/live/test_verl_contract.py` names those that we use)."""


def check_verl() -> None:
    """Raise `ConfigError` unless the pinned verl is installed."""
    mend = f"pip install verl=={VERL} (`make live` does)"
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise ConfigError("verl is not installed", where="live backend", mend=mend) from None
    if found != VERL:
        raise ConfigError("another verl than the one that Libra attaches to", where="verl", value=found,
                          allowed=(VERL,), mend=mend)  # fmt: skip
