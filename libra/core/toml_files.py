"""Finds and reads the TOML files of clusters and models: built-in ones by name, a user's own by path."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from libra.core.errors import ConfigError, unknown_name


def built_in(folder: Path) -> tuple[str, ...]:
    """Names of the files of a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def find_toml(kind: str, name_or_path: str | Path, folder: Path) -> Path:
    """The built-in file of a name (it wins over a file of the same name), or the path itself.

    A path is what ends in `.toml` or has a folder. Raises `ConfigError` with the nearest match for any other name.
    """
    name = str(name_or_path)
    if name in built_in(folder):
        return folder / f"{name}.toml"
    path = Path(name_or_path)
    if path.suffix == ".toml" or len(path.parts) > 1:
        return path
    raise unknown_name(kind, name, built_in(folder), mend="take one of these, or give the path of a .toml file")


def read_toml(kind: str, path: Path) -> dict[str, Any]:
    """Content of a file. Raises `ConfigError` for a missing one, and for broken TOML with line and column."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"broken TOML: {error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file", where=str(path), mend=f"give a {kind} file in TOML") from None
    except OSError as error:
        raise ConfigError(f"cannot read the {kind} file: {error.strerror}", where=str(path)) from None
