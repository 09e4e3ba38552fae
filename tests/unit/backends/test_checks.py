"""Each law of a checked run catches its violation."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from libra.backends.sim.checked_cache import CheckedKvCache, InvariantError
from libra.backends.sim.checks import RunChecks
from libra.backends.sim.rollout import Live
from libra.core.events import PipelineSpec
from libra.core.records import ToolReturn, Trajectory, Turn

RECORD = Trajectory("p", 0, 0, 10, (Turn(5, ToolReturn("bash", 3, "ok", 2.0)), Turn(1, None)), None, "completed")
PROMPT = ("p", 32)


def ended(**changed: object) -> Live:
    live = Live(0, RECORD, 0, 19, turn=2, start_s=1.0, end_s=9.0)
    for name, value in changed.items():
        setattr(live, name, value)
    return live


def close(
    live: Live, *, launched: int = 1, kind: str = "barrier", pool_gpu_s: float = 40.0, staleness: int = 1
) -> RunChecks:
    checks = RunChecks(PipelineSpec(kind, 0), num_gpus=8)  # type: ignore[arg-type]
    checks.launched(launched)
    row = SimpleNamespace(
        step=0, start_s=0.0, end_s=10.0, max_staleness=staleness, rollout_pool_gpu_s=pool_gpu_s, train_pool_gpu_s=40.0
    )
    rollout = SimpleNamespace(live={}, num_unstarted=0, num_ended=1)
    checks.step([live], row, rollout)  # type: ignore[arg-type]
    return checks


def test_a_lawful_step_passes() -> None:
    assert close(ended()).num_launched == 1


@pytest.mark.parametrize(
    ("changed", "given", "law"),
    [
        ({"context_tok": 18}, {}, "18 tokens of 19"),
        ({"turn": 1}, {}, "1 turns of 2"),
        ({"end_s": 2.5}, {}, "ended before its tools"),
        ({"version_start": 1}, {}, "policy versions"),
        ({}, {"launched": 2}, r"ended \+ live \+ queued"),
        ({}, {"staleness": 2}, "staleness 2 of at most 1"),
        ({}, {"staleness": 1, "kind": "async"}, "staleness 1 of at most 0"),
        ({}, {"pool_gpu_s": 41.0}, "81.0 GPU s of 80"),
    ],
)
def test_a_broken_law_is_named(changed: dict[str, object], given: dict[str, object], law: str) -> None:
    with pytest.raises(InvariantError, match=law):
        close(ended(**changed), **given)  # type: ignore[arg-type]


def test_nothing_is_trained_before_it_has_ended() -> None:
    checks = RunChecks(PipelineSpec("barrier"), 8)
    checks.trains([ended()], 9.0)
    with pytest.raises(InvariantError, match="trained at 8"):
        checks.trains([ended()], 8.0)


def test_a_hit_on_what_was_never_computed_is_caught() -> None:
    cache = CheckedKvCache(1000, 16)
    assert cache.open(0, PROMPT, 64) == 0
    cache.close(0, PROMPT, 32)
    assert cache.open(0, PROMPT, 80) == 64, "computed before"
    cache.close(0, PROMPT, 48)
    cache._lru[7] = 32  # an entry that nobody computed
    cache._evictable_tok += 32
    cache.used_tok += 32
    with pytest.raises(InvariantError, match="a hit of 64 tokens where 32 were computed"):
        cache.open(7, PROMPT, 80)


def test_kv_above_capacity_is_caught() -> None:
    cache = CheckedKvCache(100, 16)
    cache.open(0, PROMPT, 64)
    cache.capacity_tok = 60
    with pytest.raises(InvariantError, match="KV tokens of 60"):
        cache.close(0, PROMPT, 32)


def test_prefixes_go_least_recently_used_first() -> None:
    cache = CheckedKvCache(256, 16)
    for trajectory, name in ((0, "a"), (1, "b"), (2, "c")):
        cache.open(trajectory, (name, 32), 64)
        cache.close(trajectory, (name, 32), 32)
    assert cache.open(0, ("a", 32), 80) == 64, "used again, so newer than b"
    cache.close(0, ("a", 32), 48)
    cache.open(3, ("d", 32), 96)
    assert (cache.cached_tok(1), cache.cached_tok(2)) == (0, 32)


def test_at_least_one_token_is_left_to_compute() -> None:
    cache = CheckedKvCache(1000, 16)
    cache.open(0, PROMPT, 64)
    cache.close(0, PROMPT, 32)
    assert cache.open(0, PROMPT, 64) == 63


def test_what_older_weights_computed_is_no_hit() -> None:
    """A reset that forgot to drop a prefix would be caught at the next hit."""
    cache = CheckedKvCache(1000, 16)
    cache.open(0, PROMPT, 64)
    cache.close(0, PROMPT, 32)
    kept = dict(cache._lru)
    cache.reset()
    cache._lru.update(kept)
    cache._evictable_tok = cache.used_tok = sum(kept.values())
    with pytest.raises(InvariantError, match="a hit of 64 tokens where 0 were computed"):
        cache.open(0, PROMPT, 80)
