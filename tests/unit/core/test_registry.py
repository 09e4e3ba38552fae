"""Specs by name: found where they are written down, refused where two share a name, and near misses are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.core.registry import Options, Registry, parse_options

ONE = """
from libra.core.registry import PolicySpec
POLICY = PolicySpec({name!r}, "summary", lambda context: None)
"""


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_file_and_a_folder_of_files_are_plugins(tmp_path: Path) -> None:
    first = write(tmp_path, "a.py", ONE.format(name="first"))
    write(tmp_path, "b.py", ONE.format(name="second").replace("POLICY = ", "ALL = [") + "]")
    assert Registry((first,)).origin("policy", "first") == str(first)
    assert {"first", "second", "libra"} <= Registry((tmp_path,)).all("policy").keys()


def test_near_misses_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        Registry().get("policy", "verl-colocatd")
    assert error.value.nearest == "verl-colocated"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.py", "x = 1", "no policy, workload or study defined"),
        ("p.py", "def f(:", "fails to import"),
        ("p.py", "import no_such_module", "fails to import"),
        ("p.txt", "x = 1", "no plug-in there"),
        ("p.py", ONE.format(name="libra"), "two definitions of policy 'libra'"),
    ],
)
def test_a_file_that_is_no_plugin_says_why(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = write(tmp_path, name, text)
    with pytest.raises(ConfigError, match=message) as error:
        Registry((file,)).all("policy")
    assert error.value.where == str(file)


def test_an_absent_plugin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no plug-in there"):
        Registry((tmp_path / "absent.py",)).all("policy")
    with pytest.raises(ConfigError, match="no plug-in there"):
        Registry((tmp_path,)).all("policy")


class Table(Options):
    speed: int = 1


def test_options_are_validated() -> None:
    assert parse_options(Table, {"speed": 2}, "policy p").speed == 2
    with pytest.raises(ConfigError) as unknown:
        parse_options(Table, {"sped": 2}, "policy p")
    assert (unknown.value.nearest, unknown.value.where) == ("speed", "policy p")
    with pytest.raises(ConfigError, match="option 'speed'"):
        parse_options(Table, {"speed": "fast"}, "policy p")
