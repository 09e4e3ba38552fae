"""Statuses of tool returns: exit codes before typed results before text."""

from __future__ import annotations

import pytest

from libra.core.records import ToolStatus
from libra.workloads.importers.status import judge, of_exit_code, worst


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("0 errors, 12 passed", "ok"),
        ("12 passed, 0 failed, 0 errors in 0.10s", "ok"),
        ("======= 1 failed, 11 passed in 2.0s =======", "error"),
        ("bash: foo: command not found", "error"),
        ("/bin/sh: line 1: foo: command not found", "error"),
        ("the process finished\nexit code 1", "error"),
        ("Process exited with code 0", "ok"),
        ("Process exited with code 124", "timeout"),
        ("returncode: -9", "error"),
        ("cat: a.py: No such file or directory", "error"),
        ("Error: payment method not found", "error"),
        ("Errors are documented in chapter 3", "ok"),
        ('Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bad', "error"),
        ("\nEXECUTION TIMED OUT", "timeout"),
        ("[File: a.py (9 lines total)]\n1:raise ValueError\n2:except Error:\n3:    pass\n4:\n5:end", "ok"),
        ("", "ok"),
        ("299.0", "ok"),
    ],
)
def test_by_text(text: str, status: ToolStatus) -> None:
    assert judge(text) == (status, "status_text")


@pytest.mark.parametrize(
    ("text", "status", "how"),
    [
        ('{"exit_code": 1, "output": "0 errors"}', "error", "status_exit_code"),
        ('{"exit_code": 0, "output": "Traceback (most recent call last):"}', "ok", "status_exit_code"),
        ('{"returncode": 124}', "timeout", "status_exit_code"),
        ('{"error": null, "value": 3}', "ok", "status_typed"),
        ('{"error": "no such user"}', "error", "status_typed"),
        ('{"success": false}', "error", "status_typed"),
        ('{"is_error": true}', "error", "status_typed"),
        ('{"status": "timeout"}', "timeout", "status_typed"),
        ('{"status": "available", "exit_code": true}', "ok", "status_text"),
        ('{"cut": ', "ok", "status_text"),
    ],
)
def test_by_type(text: str, status: ToolStatus, how: str) -> None:
    assert judge(text) == (status, how)


def test_exit_codes_and_the_worst() -> None:
    assert [of_exit_code(code) for code in (0, 1, -9, 124)] == ["ok", "error", "error", "timeout"]
    assert worst(["ok", "unknown"]) == "unknown"
    assert worst(["error", "timeout", "ok"]) == "timeout"
