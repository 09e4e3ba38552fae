"""Readers of other frameworks' rollout dumps, one file a format, found by themselves; `import_dump` drives them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from libra.core.errors import unknown_name
from libra.workloads.importers.base import ImporterSpec
from libra.workloads.importers.drive import AUTO, ImportResult, read_dumps


@cache
def importers() -> dict[str, ImporterSpec]:
    """Formats by name, sorted: every module of this package with an `IMPORTER`."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    specs = [module.IMPORTER for module in modules if isinstance(getattr(module, "IMPORTER", None), ImporterSpec)]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}


def import_dump(format_name: str, paths: Sequence[Path]) -> ImportResult:
    """Read dumps of one format, or of any (`auto`), from files and folders.

    A bad row never loses the good ones: it is in the report. Raises `ConfigError` for an unknown format, `TraceError`
    for a path that does not exist or when nothing at all could be read.
    """
    specs = importers()
    if format_name != AUTO and format_name not in specs:
        raise unknown_name("dump format", format_name, [AUTO, *specs], mend="`libra list importer` shows what there is")
    return read_dumps(specs, format_name, paths)


__all__ = ["ImportResult", "ImporterSpec", "import_dump", "importers"]
