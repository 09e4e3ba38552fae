"""Events a second of the bare cores on one CPU core, without policy, controller or trainer. Run by hand:

python benchmarks/core_speed.py > benchmarks/results/core_speed_$(date +%F).txt

R2E-Gym's trajectories on sixteen TP-2 engines: each starts on the next engine in turn and stays there, and as one ends
the next one starts, so that always `in flight` of them live. Both cores are driven through the same loads and have to
end at the same time after as many events.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Sequence

import numpy as np
from numba import njit

from experiments.resolve import Resolver
from libra.backends.sim.clock import Clock
from libra.backends.sim.compiled import loop
from libra.backends.sim.compiled.state import DUE, ENDED, EVENTS_FULL, NOTHING_LEFT, STEP_UNKNOWN, TOOL_RETURNED
from libra.backends.sim.compiled.store import Store
from libra.backends.sim.instance import Instance, Request
from libra.backends.sim.options import SimOptions
from libra.backends.sim.truth import StepModel, Truth
from libra.core.records import Trajectory
from libra.core.registry import Registry
from libra.results.cell import Cell

NUM_ENGINES, TP, GROUP_SIZE = 16, 2, 16
LOADS = ((32, 200), (2048, 5))
"""Trajectories in flight, and how often that many are run through."""
NEVER = -1.0
"""Latency after a last turn."""

run, submit, forget = loop.run, loop.submit, loop.forget


def load(in_flight: int, rounds: int) -> tuple[StepModel, list[Trajectory]]:
    overrides = {"workload.prompts": in_flight // GROUP_SIZE, "workload.num_steps": rounds}
    setup = Resolver(Registry()).setup(
        Cell.make("speed", "r2e-gym", "a800x48", "qwen3-14b", "libra", overrides=overrides)
    )
    workload = setup.build_workload()
    found = [each for index in range(in_flight * rounds // GROUP_SIZE) for each in workload.group(index)]
    return Truth(setup.cluster, setup.model).step_model(TP), found


def python_core(model: StepModel, trajectories: Sequence[Trajectory], in_flight: int) -> tuple[int, float, float]:
    """Events, simulated and real seconds."""
    clock, todo, place, num_done = Clock(), deque(enumerate(trajectories)), dict[int, tuple[int, int]](), 0

    def begin() -> None:
        number, record = todo.popleft()
        place[number] = 0, record.prompt_tok
        ask(number)

    def ask(number: int) -> None:
        record, (turn, context_tok) = trajectories[number], place[number]
        request = Request(number, (record.prompt_id, record.prompt_tok), context_tok, record.turns[turn].generated_tok)
        engines[number % NUM_ENGINES].submit(request)

    def done(engine: Instance, request: Request) -> None:
        nonlocal num_done
        number = request.trajectory
        turn, context_tok = place[number]
        played = trajectories[number].turns[turn]
        if played.tool is None:
            num_done += 1
            del place[number]
            engine.cache.forget(number)
            if todo:
                begin()
            return
        place[number] = turn + 1, context_tok + played.generated_tok + played.tool.payload_tok
        clock.at(clock.now_s + (played.tool.latency_s or 0.0), lambda: ask(number))

    options = SimOptions()
    engines = [Instance(slot, model, options, clock.now, clock.at, done) for slot in range(NUM_ENGINES)]
    started = time.perf_counter()
    for _ in range(in_flight):
        begin()
    clock.run(lambda: num_done == len(trajectories))
    return clock.num_events, clock.now_s, time.perf_counter() - started


@njit(_nrt=False)  # as in `compiled.jit`
def ask_compiled(head, events, engines, turns, prefixes, running, times, key, place, owner, tables):
    """False while the heap of events is full."""
    number, (generated, payload, latency, first) = owner[key], tables
    turn, context_tok = first[number] + place[number, 0], place[number, 1]
    is_last = turn + 1 == first[number + 1]
    after_s = NEVER if is_last else latency[turn]
    arrays = (head, events, engines, turns, prefixes, running, times)
    if not submit(*arrays, number % NUM_ENGINES, key, context_tok, generated[turn], after_s):
        return False
    place[number, 0] += 1
    place[number, 1] = context_tok + generated[turn] + payload[turn]
    return True


@njit(_nrt=False)  # as in `compiled.jit`
def drive(head, events, engines, turns, prefixes, running, times, keys, place, owner, tables, state):
    """Run until all have ended or Python has to help. `state`: next trajectory, ended ones, one that must be asked."""
    arrays = (head, events, engines, turns, prefixes, running, times)
    while True:
        if state[2] >= 0:
            if not ask_compiled(*arrays, state[2], place, owner, tables):
                return EVENTS_FULL, 0
            state[2] = -1
        if state[1] == len(keys):
            return NOTHING_LEFT, 0
        why, who, _ = run(*arrays)
        if why == TOOL_RETURNED:
            state[2] = who
        elif why == ENDED:
            state[1] += 1
            forget(*arrays, head[0].engine, who)
            if state[0] < len(keys):
                state[2] = keys[state[0]]
                state[0] += 1
        else:
            return why, who


def compiled_core(model: StepModel, trajectories: Sequence[Trajectory], in_flight: int) -> tuple[int, float, float]:
    store = Store(SimOptions())
    slots = [store.open_slot(model) for _ in range(NUM_ENGINES)]
    assert slots == list(range(NUM_ENGINES)), "trajectory n starts in slot n modulo the engines"
    keys = np.array([store.key(n, (each.prompt_id, each.prompt_tok)) for n, each in enumerate(trajectories)])
    owner = np.full(len(store.names), -1)
    owner[keys] = range(len(keys))
    played = [turn for each in trajectories for turn in each.turns]
    first = np.cumsum([0, *(len(each.turns) for each in trajectories)])
    tables = (
        np.array([turn.generated_tok for turn in played]),
        np.array([turn.tool.payload_tok if turn.tool else 0 for turn in played]),
        np.array([(turn.tool.latency_s or 0.0) if turn.tool else NEVER for turn in played]),
        first,
    )
    place = np.zeros((len(trajectories), 2), np.int64)
    place[:, 1] = [each.prompt_tok for each in trajectories]
    state = np.array([in_flight, 0, -1])
    started = time.perf_counter()
    for number in range(in_flight):
        while not ask_compiled(*store.arrays, keys[number], place, owner, tables):
            store.grow_events()
    while True:
        why, who = drive(*store.arrays, keys, place, owner, tables, state)
        if why == EVENTS_FULL:
            store.grow_events()
        elif why == STEP_UNKNOWN:
            store.fill_step(int(store.arrays.head[0]["engine"]), who)
        else:
            assert why != DUE
            break
    head = store.arrays.head[0]
    return int(head["num_events"]), float(head["now_s"]), time.perf_counter() - started


def main() -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    print(f"commit {commit.strip()}, {os.cpu_count()} cores, one used; {NUM_ENGINES} TP-{TP} engines, no policy")
    compiled_core(*load(32, 1), 32)  # compiles
    for in_flight, rounds in LOADS:
        model, trajectories = load(in_flight, rounds)
        ends = []
        for name, core in (("python", python_core), ("compiled", compiled_core)):
            num_events, end_s, wall_s = core(model, trajectories, in_flight)
            ends.append((num_events, end_s))
            print(
                f"{in_flight} in flight, {len(trajectories):,} trajectories, {name}: {num_events:,} events in "
                f"{wall_s:.2f} s, {num_events / wall_s:,.0f} a second; {end_s / wall_s:,.0f} times real time"
            )
        assert ends[0] == ends[1], f"the cores differ: {ends}"


if __name__ == "__main__":
    main()
