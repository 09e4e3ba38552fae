"""Selectors: `policy=libra,workload=r2e-*,seed<3` picks cells of a study by their fields and overrides."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from libra.core.errors import ConfigError, nearest_match
from libra.results.cell import OVERRIDE_KEYS, Cell, check_key, parse_value, show

FIELDS = ("study", "workload", "cluster", "model", "policy", "backend", "seed", "variant")
ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CLAUSE = re.compile(r"\s*([\w.]+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*", re.DOTALL)
HELP = "FIELD=VALUE, FIELD!=VALUE or FIELD<NUMBER, joined by commas; VALUE may be a|b or hold * and ?"


def matches(cell: Cell, selector: str) -> bool:
    """Whether a cell fulfils every clause; the empty selector takes all. Raises `ConfigError` for a bad selector."""
    return compile_selector(selector)(cell)


def compile_selector(selector: str) -> Callable[[Cell], bool]:
    """The selector as a function, checked once. Raises `ConfigError` for unknown fields and unreadable clauses."""
    clauses = [_clause(text) for text in selector.split(",") if text.strip()]
    return lambda cell: all(clause(cell) for clause in clauses)


def _clause(text: str) -> Callable[[Cell], bool]:
    found = _CLAUSE.fullmatch(text)
    if found is None:
        raise ConfigError("unreadable clause", where="--only", value=text.strip(), mend=HELP)
    field, sign, wanted = found.groups()
    _check_field(field)
    if sign in ORDERS:
        return _ordered(field, ORDERS[sign], wanted, text)
    patterns = [pattern.strip() for pattern in wanted.split("|")]

    def fulfilled(cell: Cell) -> bool:
        value = _value(cell, field)
        return (value is not None and any(_equal(value, pattern) for pattern in patterns)) == (sign == "=")

    return fulfilled


def _ordered(field: str, order: Callable[[Any, Any], bool], wanted: str, text: str) -> Callable[[Cell], bool]:
    limit = parse_value(wanted)
    if isinstance(limit, bool | str):
        raise ConfigError("an order needs a number", where="--only", value=text.strip(), mend=HELP)

    def fulfilled(cell: Cell) -> bool:
        value = _value(cell, field)
        return isinstance(value, int | float) and not isinstance(value, bool) and order(value, limit)

    return fulfilled


def _check_field(field: str) -> None:
    if field in FIELDS:
        return
    if "." in field and field.partition(".")[0] in OVERRIDE_KEYS:
        return check_key(field, where="--only")
    allowed = [*FIELDS, *(f"{head}.OPTION" for head in OVERRIDE_KEYS)]
    raise ConfigError(
        "unknown field", where="--only", value=field, allowed=allowed, nearest=nearest_match(field, FIELDS), mend=HELP
    )


def _value(cell: Cell, field: str) -> str | int | float | bool | None:
    return getattr(cell, field) if field in FIELDS else cell.override(field)


def _equal(value: str | int | float | bool, pattern: str) -> bool:
    """Numbers compare as numbers (2 = 2.0), everything else as text with wildcards."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        wanted = parse_value(pattern)
        if not isinstance(wanted, str | bool):
            return value == wanted
    return fnmatchcase(show(value), pattern)
