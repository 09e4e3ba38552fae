"""The actor that holds policy and recorder, in the place of verl's load balancer (verl/workers/rollout/router.py).

verl asks it for an engine before every turn. `LibraClient` (agent_loop.py) says with each question which trajectory
asks and what its tool returned; the trainer reports steps. Everything runs on the actor's one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

from libra.core.errors import ConfigError
from libra.core.plan import Plan
from libra.integrations.saved import Saved, load, save
from libra.integrations.session import Session
from libra.integrations.settings import Settings, read_settings
from libra.integrations.turns import Ended, StepDone, Turn, TurnDone
from libra.integrations.verl.telemetry import EngineWatch
from libra.runtime.attempt import AttemptRecorder, carry_over
from libra.runtime.controller import Controller

WAIT_S = 0.2
"""Between looks for an engine while none is up: short against the seconds that a restart takes."""
MAX_FAILURES = 64
"""Trajectories in a row that end with an exception: more than any one prompt's group. verl would try for ever."""


class LibraRouter:
    """`servers` maps addresses to actor handles; `config` is the settings file's content, or its path under `settings`.

    A job that starts its own engines gets them numbered in this order. `libra.integrations.verl.trainer` creates the
    actor without servers, asks it for the plan, and attaches the engines that it started for it.
    """

    def __init__(self, servers: dict[str, Any], config: dict[str, Any]) -> None:
        self.settings = _settings(config)
        self._is_stock = "settings" not in config
        self._handles: dict[int, Any] = {}
        self._addresses: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._inflight: Counter[str] = Counter()
        self._lost: list[int] = []
        self._num_failures = 0
        self._failure = ""
        self._policy_error = ""
        self._heard_s = time.monotonic()
        self._saved: Saved | None = None
        self._watch: EngineWatch | None = None
        if servers:
            self._check_sizes(len(servers))
            self._open()
            self._session.start()
            self._attach({number: pair for number, pair in enumerate(servers.items())})

    # -- for libra's trainer -------------------------------------------------------------------------------------

    async def start(self) -> Plan:
        """The first plan, or the one that a run to resume had at its checkpoint."""
        self._open()
        if not self.settings.resume:
            return self._session.start()
        checkpoint = Path(self.settings.resume)
        self._saved = load(checkpoint)
        records = (checkpoint / self._saved.records).resolve()
        carry_over(records, self._saved.position, self._recorder, self._session.controller.policy)
        return self._saved.session.plan

    async def resumed(self, finished: list[str]) -> None:
        """The trainer has loaded its checkpoint, which holds these trajectories; the others start again."""
        assert self._saved is not None, "start() comes first"
        self._session.restore(self._saved.session, set(finished))

    async def save(self, checkpoint: str) -> None:
        """Our part of a checkpoint. It comes last, so every trajectory in verl's part is known here as ended."""
        save(Path(checkpoint), self._session.state(), self._recorder.position(), self._recorder.folder)

    async def attach(self, engines: dict[int, tuple[str, Any]]) -> None:
        """Engines of the plan by instance: (address, handle)."""
        self._attach(engines)

    async def revive(self, instance: int, address: str, handle: Any) -> None:
        """A lost instance is back, with the present weights, under a new address."""
        self._know(instance, address, handle)
        self._session.set_state(instance, "up", "restarted")

    async def take_lost(self) -> list[int]:
        """Instances lost since the last call."""
        lost, self._lost = self._lost, []
        return lost

    async def take_failure(self) -> str | None:
        """Why the job makes no progress, once `MAX_FAILURES` trajectories in a row have failed, or the policy has."""
        if self._policy_error:
            return f"the policy failed: {self._policy_error}"
        if self._num_failures < MAX_FAILURES:
            return None
        return f"{self._num_failures} trajectories in a row failed, the last one with\n{self._failure}"

    async def quiet_s(self) -> float:
        """Seconds since a trajectory, of an evaluation too, asked or told anything."""
        return time.monotonic() - self._heard_s

    async def step_done(self, done: StepDone) -> None:
        self._session.step_done(done)

    async def finish(self) -> None:
        """Write everything; the run is over."""
        if self._watch is not None:
            self._watch.end()
        self._session.close()
        self._recorder.close()

    # -- for libra's client --------------------------------------------------------------------------------------

    async def turn_done(self, done: TurnDone) -> None:
        self._heard_s = time.monotonic()
        self._session.turn_done(done)

    async def turn_lost(self, key: str) -> None:
        self._session.turn_lost(key)

    async def ended(self, end: Ended) -> None:
        """Written at once, so that what is trained is on disk: verl's own trainers report neither steps nor the end."""
        self._heard_s = time.monotonic()
        if end.status != "aborted":
            self._num_failures = 0
        self._session.ended(end)
        if self._is_stock:
            self._session.write_untrained(end.key)
        self._recorder.flush()

    async def failed(self, error: str) -> None:
        """A trajectory, of an evaluation too, ended with an exception; verl drops its group and goes on."""
        self._num_failures, self._failure = self._num_failures + 1, error

    async def server_lost(self, address: str) -> None:
        """An engine no longer answers."""
        number = self._numbers.pop(address, None)
        if number is not None:
            self._inflight.pop(address, None)
            self._lost.append(number)
            self._session.set_state(number, "down", "its engine no longer answers")

    # -- verl's protocol -----------------------------------------------------------------------------------------

    async def acquire_server(
        self, request_id: str, turn: Turn | None = None, is_evaluation: bool = False
    ) -> tuple[str, Any]:
        """Address and handle for a turn. Evaluation goes to the least busy engine, unseen by the policy."""
        if turn is None and not is_evaluation:
            raise ConfigError(
                "the router was asked without a trajectory's name",
                where="actor_rollout_ref.rollout.agent.agent_loop_manager_class",
                mend="set it to libra.integrations.verl.agent_loop.LibraAgentLoopManager",
            )
        self._heard_s = time.monotonic()
        self._watch_engines()
        try:
            while (number := self._choose(turn)) is None:
                await asyncio.sleep(WAIT_S)
        except Exception as error:
            self._policy_error = f"{type(error).__name__}: {error}"
            raise
        address = self._addresses[number]
        self._inflight[address] += 1
        return address, self._handles[number]

    async def release_server(self, server_id: str, request_id: str | None = None) -> None:
        self._heard_s = time.monotonic()
        if self._inflight[server_id] > 0:
            self._inflight[server_id] -= 1

    async def require_acquire_fields(self) -> list[str]:
        return ["turn", "is_evaluation"]

    async def require_release_fields(self) -> list[str]:
        return []

    async def add_servers(self, servers: dict[str, Any]) -> None:
        """Engines that were removed come back; others are not in the plan."""
        for address in servers:
            known = [number for number, old in self._addresses.items() if old == address]
            if not known:
                raise ConfigError("an engine that is not in the plan", where="LibraRouter.add_servers", value=address,
                                  allowed=self._addresses.values(),
                                  mend="with separate_async set actor_rollout_ref.hybrid_engine=False")  # fmt: skip
            self._numbers[address] = known[0]
            self._session.set_state(known[0], "up")

    async def remove_servers(self, server_ids: list[str]) -> None:
        for address in server_ids:
            number = self._numbers.pop(address, None)
            if number is not None:
                self._session.set_state(number, "down")

    async def get_all_servers(self) -> list[str]:
        return list(self._numbers)

    async def get_status(self) -> dict[str, Any]:
        return {
            "servers": {address: self._inflight[address] for address in self._numbers},
            "total_inflight": sum(self._inflight.values()),
            "active_servers": len(self._numbers),
        }

    async def get_inflight_count(self, server_id: str) -> int:
        return self._inflight[server_id]

    async def get_total_inflight(self) -> int:
        return sum(self._inflight.values())

    async def clear_sticky_cache(self) -> dict[str, Any]:
        """Nothing is sticky here but by the policy's decision."""
        return {"cleared_entries": 0, "server_loads": dict(self._inflight)}

    # -- inner wiring --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Policy and records. verl makes a second router, for the engines on training devices, which has no work."""
        self._recorder = AttemptRecorder(Path(self.settings.out))
        controller = Controller(self.settings.build_policy(), self._recorder, clock=time.perf_counter)
        self._session = Session(controller, self.settings.run_start(), clock=time.monotonic)

    def _attach(self, engines: dict[int, tuple[str, Any]]) -> None:
        for number, (address, handle) in engines.items():
            self._know(number, address, handle)
        self._session.attach(tuple(engines))

    def _watch_engines(self) -> None:
        """From the first question on: before it there is no loop, or no run."""
        if self._watch is None:
            record, now_s = self._recorder.engine, self._session.now_s
            self._watch = EngineWatch(self._up_handles, record, now_s, self.settings.telemetry_s)
            self._watch.begin()

    def _up_handles(self) -> dict[int, Any]:
        return {number: self._handles[number] for number in self._numbers.values()}

    def _know(self, number: int, address: str, handle: Any) -> None:
        self._addresses[number], self._handles[number], self._numbers[address] = address, handle, number

    def _choose(self, turn: Turn | None) -> int | None:
        if turn is not None:
            return self._session.place(turn)
        up = self._session.up()
        return min(up, key=lambda number: (self._inflight[self._addresses[number]], number), default=None)

    def _check_sizes(self, num_servers: int) -> None:
        if len(self.settings.instances) != num_servers:
            raise ConfigError(
                f"the job started {num_servers} engines",
                where="settings: instances",
                value=list(self.settings.instances),
                mend="give the tensor-parallel size of each engine that the job starts, in their order",
            )


def _settings(config: dict[str, Any]) -> Settings:
    import msgspec

    if "settings" in config:
        return read_settings(Path(config["settings"]))
    try:
        return msgspec.convert(config, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings cannot be read: {error}", where="router_config_path",
                          allowed=Settings.__struct_fields__) from error  # fmt: skip
