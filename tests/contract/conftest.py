"""Every registered policy is held to the contract, and a plug-in's: `pytest tests/contract --plugin my_policy.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.clusters import load_cluster
from libra.core.hardware import Cluster, Model
from libra.core.registry import Registry
from libra.models import load_model


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plugin",
        action="append",
        default=[],
        metavar="PATH",
        help="also hold the policies of this file or folder to the contract; may be repeated",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a policy: whatever the registry finds, under its name."""
    if "spec" in metafunc.fixturenames:
        plugins = tuple(Path(path) for path in metafunc.config.getoption("--plugin", default=[]))
        specs = Registry(plugins=plugins).all("policy")
        metafunc.parametrize("spec", specs.values(), ids=list(specs))


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return load_cluster("a800x48")


@pytest.fixture(scope="session")
def model() -> Model:
    return load_model("qwen3-14b")
