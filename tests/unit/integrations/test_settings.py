"""The settings file: what is wrong in it is said; what is right builds a policy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libra.core.errors import ConfigError
from libra.core.events import RunStart
from libra.core.policy import ComposedPolicy
from libra.integrations.given import GivenLayout
from libra.integrations.settings import Settings, read_settings

SETTINGS = Settings(
    policy="libra", cluster="cpu2", model="tiny", out="out", batch=8, group_size=4, num_steps=2, max_context_tok=512
)


def written(path: Path, **changes: object) -> Path:
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(SETTINGS), **changes}))
    return path


def test_settings_survive_the_file(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path / "libra.json")) == SETTINGS


def test_an_unknown_key_has_a_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'policy'"):
        read_settings(written(tmp_path / "libra.json", polcy="libra"))


def test_a_missing_file_and_a_broken_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such settings file"):
        read_settings(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(broken)


def test_an_oracle_cannot_run_live() -> None:
    with pytest.raises(ConfigError, match="nobody knows the lengths"):
        msgspec.structs.replace(SETTINGS, policy="pattern-oracle").build_policy()


def test_given_engines_replace_the_planner() -> None:
    policy = msgspec.structs.replace(SETTINGS, instances=(1, 2, 1)).build_policy()
    assert isinstance(policy, ComposedPolicy)
    policy.decide(SETTINGS.run_start())
    plan = GivenLayout((1, 2, 1)).plan(policy.statistics(), None)
    assert [(each.tp, each.bucket) for each in plan.instances] == [(1, 0), (2, 1), (1, 0)]
    assert plan.bounds_tok == (256, 512)


def test_the_first_event_has_the_runs_facts() -> None:
    run = SETTINGS.run_start()
    assert isinstance(run, RunStart)
    assert (run.batch, run.group_size, run.max_context_tok, run.profile) == (8, 4, 512, ())


def buckets(instances: tuple[int, ...], bounds_tok: tuple[int, ...]) -> list[int]:
    policy = msgspec.structs.replace(SETTINGS, instances=instances, bounds_tok=bounds_tok).build_policy()
    assert isinstance(policy, ComposedPolicy)
    policy.decide(SETTINGS.run_start())
    plan = GivenLayout(instances, bounds_tok).plan(policy.statistics(), None)
    assert plan.bounds_tok == bounds_tok
    return [each.bucket for each in plan.instances]


def test_equal_engines_are_shared_out_among_the_bounds() -> None:
    """verl starts engines of one size."""
    assert buckets((4, 4, 4, 4), (256, 512)) == [0, 0, 1, 1]
    assert buckets((1, 1, 1), (256, 512)) == [0, 0, 1]
    assert buckets((4, 1, 2, 1), (256, 512)) == [1, 0, 1, 0]
    assert buckets((2, 1), (256, 512)) == [1, 0]


def test_a_bucket_without_an_engine_is_refused() -> None:
    wrong = msgspec.structs.replace(SETTINGS, instances=(1, 1), bounds_tok=(128, 256, 512))
    with pytest.raises(ConfigError, match=r"bounds_tok: a bucket needs an engine.*\n  to mend: at most 2 bounds"):
        wrong.build_policy()
