"""The rollout over the compiled core, which runs turns and tools and comes back for placements and ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from libra.backends.sim.compiled.twins import CompiledClock, CompiledInstance
from libra.backends.sim.instance import Instance
from libra.backends.sim.rollout import Live, Rollout


@dataclass
class CompiledRollout(Rollout):
    """What a turn changes in a trajectory's books is written down when its tool is back, instead of when it ends; what
    the engines counted, when the trajectory is over."""

    def __post_init__(self) -> None:
        clock = cast(CompiledClock, self.clock)
        self._store = clock.store
        clock.on_tool, clock.on_end, clock.on_turn = self._tool_is_back, self._is_over, cast(Any, self.fleet.drained)

    @property
    def num_preemptions(self) -> int:
        return int(self._store.arrays.head[0]["num_preemptions"])

    def _submit(self, live: Live, engine: Instance) -> None:
        record = live.record
        turn = record.turns[live.turn]
        if not turn.generated_tok:
            super()._submit(live, engine)
            return
        latency_s = -1.0 if turn.tool is None else turn.tool.latency_s or 0.0
        prompt = record.prompt_id, record.prompt_tok
        cast(CompiledInstance, engine).submit_turn(live.id, prompt, live.context_tok, turn.generated_tok, latency_s)

    def _tool_is_back(self, trajectory: int) -> None:
        live = self.live[trajectory]
        tool = self._next_turn(live)
        assert tool is not None, "a turn without a tool ends its trajectory"
        self._tool_returned(live, tool, tool.latency_s or 0.0)

    def _is_over(self, trajectory: int, engine: CompiledInstance) -> None:
        live = self.live[trajectory]
        self._next_turn(live)
        self._end(live)
        self.fleet.drained(cast(Any, engine))

    def _end(self, live: Live) -> None:
        key = self._store.keys.get(live.id)
        if key is not None:
            turn = self._store.arrays.turns[key]
            live.queue_s = float(turn["total_queue_s"])
            live.cached_tok, live.prefilled_tok = int(turn["total_cached_tok"]), int(turn["total_prefilled_tok"])
            live.num_preemptions = int(turn["total_preemptions"])
        super()._end(live)
        self._store.retire(live.id, (live.record.prompt_id, live.record.prompt_tok))
