"""How a tool return went: from exit codes first, from typed results next, from the text only at last.

The text alone misleads: "0 errors, 12 passed" is a success, "command not found" and "exit code 1" are failures, and a
file that is shown may speak of errors. So the text is judged by its first line, its last lines and shell messages only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from libra.core.records import ToolStatus

EXIT_TIMEOUT = 124
"""What `timeout` of the GNU core utilities returns."""
EXIT_KEYS = ("exit_code", "returncode", "return_code", "exit_status")
FLAG_KEYS = ("success", "ok")
FAILED_WORDS = ("error", "failed", "failure")
TIMEOUT_WORDS = ("timeout", "timed_out")
WORST: tuple[ToolStatus, ...] = ("ok", "unknown", "error", "timeout")
"""From best to worst."""

_TIMEOUT = re.compile(r"\b(timed out|timeout expired|execution timeout)\b", re.IGNORECASE)
_EXIT_CODE = re.compile(r"\b(?:exit(?:ed with)?|return)[ _-]?(?:code|status)?[ :=>]*(-?\d{1,9})\b", re.IGNORECASE)
_FIRST_LINE = re.compile(
    r"\s*(?:error\b|\[error\]|fatal:|exception:|invalid\b|traceback \(most recent call last\)"
    r"|your proposed edit has introduced|my previous action is invalid)",
    re.IGNORECASE,
)
_SHELL = re.compile(
    r"^\S+: (?:line \d+: )?.{0,200}\b"
    r"(?:(?:command )?not found|No such file(?: or directory)?|Permission denied)\)?\s*$",
    re.MULTILINE,
)
_LAST_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b(?::|$)|\b[1-9]\d* (?:failed|errors?)\b", re.MULTILINE)
MAX_JUDGED_CHARS = 4_000
"""From either end: longer returns are listings, and the verdict stands at an end."""
LAST_LINES = 3


def worst(statuses: Iterable[ToolStatus]) -> ToolStatus:
    """The worst of several statuses."""
    return max(statuses, key=WORST.index)


def of_exit_code(code: int) -> ToolStatus:
    """0 is ok, 124 a timeout, anything else an error."""
    return "ok" if code == 0 else "timeout" if code == EXIT_TIMEOUT else "error"


def judge(content: str) -> tuple[ToolStatus, str]:
    """Status of a return and what told it, a key of `report.COUNTED`."""
    typed = _of_typed(content)
    if typed:
        return typed
    return of_text(content), "status_text"


def _of_typed(content: str) -> tuple[ToolStatus, str] | None:
    if not content.lstrip().startswith("{"):
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return of_result(found)


def of_result(found: dict[str, Any]) -> tuple[ToolStatus, str] | None:
    """Status of a result object by its top-level keys; None where it does not tell."""
    for key in EXIT_KEYS:
        code = found.get(key)
        if isinstance(code, int) and not isinstance(code, bool):
            return of_exit_code(code), "status_exit_code"
    word = str(found.get("status", "")).lower()
    if word in TIMEOUT_WORDS:
        return "timeout", "status_typed"
    if word in FAILED_WORDS or found.get("is_error") is True or found.get("error"):
        return "error", "status_typed"
    for key in FLAG_KEYS:
        if isinstance(found.get(key), bool):
            return ("ok" if found[key] else "error"), "status_typed"
    return ("ok", "status_typed") if "is_error" in found or "error" in found else None


def of_text(text: str) -> ToolStatus:
    """Status by the text alone: ok unless it shows a failure."""
    head, tail = text[:MAX_JUDGED_CHARS], text[-MAX_JUDGED_CHARS:]
    first = next((line for line in head.splitlines() if line.strip()), "")
    last = "\n".join([line for line in tail.splitlines() if line.strip()][-LAST_LINES:])
    ends = f"{first}\n{last}"
    if _TIMEOUT.search(ends):
        return "timeout"
    codes = _EXIT_CODE.findall(ends)
    if codes:
        return of_exit_code(int(codes[-1]))
    if _FIRST_LINE.match(first) or _SHELL.search(ends) or _LAST_LINE.search(last):
        return "error"
    return "ok"
