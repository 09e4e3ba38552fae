"""Ports that Ray, vLLM and torch like are taken by others: a job's Ray starts all the same, as it asks for free ones.

`tests/unit/workloads/tools/test_search_server.py` does the same to the search server.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")  # before verl's import, which loads the plugin
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "libra.integrations.verl.plugin")
pytest.importorskip("verl", reason="needs the live stack: `make live-test`")

from libra.backends.live import temporary
from libra.backends.live.backend import _environment
from tests.live.test_verl_contract import configuration

AGENT_PORT = 52365
"""Of Ray's dashboard agent: the one port that it does not ask the kernel for. It goes on without."""
PORTS = (6379, 8000, 8265, 10001, 29500, AGENT_PORT)
PROGRAM = """
import json, sys, ray
ray.init(**json.loads(sys.argv[1]))

@ray.remote(num_gpus=1)
class Actor:
    def answer(self): return 42

actors = [Actor.remote(), Actor.remote()]
print(sum(ray.get([actor.answer.remote() for actor in actors])))
"""


@pytest.fixture
def taken() -> Iterator[None]:
    with ExitStack() as stack:
        for port in PORTS:
            with suppress(OSError):  # taken already
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
        yield


def test_a_jobs_ray_starts_beside_whoever_has_the_usual_ports(taken: None, tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    given = OmegaConf.to_container(configuration("cpu4", tmp_path).ray_kwargs.ray_init)
    temp = temporary.folder_of(os.urandom(8).hex())
    temp.mkdir()
    try:
        env = {**os.environ, **_environment("cpu", tmp_path), "TMPDIR": str(temp), "RAY_TMPDIR": str(temp)}
        command = [sys.executable, "-c", PROGRAM, json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)
        assert done.returncode == 0, done.stderr[-4000:]
        assert done.stdout.split()[-1] == "84"
        (port,) = temp.glob("ray/session_[0-9]*/dashboard_agent_listen_port_*")
        assert port.read_text() == "-1"  # it was really taken
    finally:
        temporary.remove(temp)
