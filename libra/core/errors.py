"""User-facing errors: each says what is wrong, where, what is allowed, the nearest match and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LibraError(Exception):
    """Root of all errors that a user can mend. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(LibraError):
    """A name, option or value that is not allowed."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        value: object = None,
        allowed: Iterable[object] = (),
        nearest: str | None = None,
        mend: str = "",
    ) -> None:
        self.what, self.where, self.value, self.mend = what, where, value, mend
        self.allowed = tuple(str(a) for a in allowed)
        self.nearest = nearest
        super().__init__(self._text())

    def _text(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        if self.value is not None:
            head += f" (got {self.value!r})"
        lines = [head]
        if self.nearest:
            lines.append(f"  did you mean {self.nearest!r}?")
        if self.allowed:
            shown = ", ".join(self.allowed[:24]) + (", ..." if len(self.allowed) > 24 else "")
            lines.append(f"  allowed: {shown}")
        if self.mend:
            lines.append(f"  to mend: {self.mend}")
        return "\n".join(lines)


class TraceError(ConfigError):
    """A trace or dump that cannot be read, or holds impossible values."""


class CapacityError(ConfigError):
    """A model, layout or trajectory that does not fit the cluster."""


class PolicyError(LibraError):
    """A policy broke the protocol: what it answered is no answer to the event that it got."""


class StoreError(ConfigError):
    """A store that cannot be written, is in use by another run, or holds something unexpected."""


def nearest_match(value: object, allowed: Iterable[object]) -> str | None:
    """Closest allowed name, or None when nothing is similar (difflib ratio under 0.5)."""
    names = [str(a) for a in allowed]
    found = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    return found[0] if found else None


def unknown_name(
    kind: str, value: object, allowed: Iterable[object], *, where: str = "", mend: str = ""
) -> ConfigError:
    """`ConfigError` for a name that is in no list, with the nearest match."""
    names = sorted(str(a) for a in allowed)
    return ConfigError(
        f"unknown {kind}", where=where, value=value, allowed=names, nearest=nearest_match(value, names), mend=mend
    )
