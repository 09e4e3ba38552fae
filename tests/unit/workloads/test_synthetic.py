"""Generators against their closed forms, common random numbers, and what users are told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from libra.core.errors import ConfigError
from libra.core.registry import Options, WorkloadSpec, parse_options
from libra.workloads import dapo_math, fixed_length, r2e_gym, search_r1, trace
from libra.workloads.base import PROFILE_GROUP, Workload
from libra.workloads.synthetic import SyntheticOptions, SyntheticWorkload
from libra.workloads.trace_file import problem_in

LIMIT_TOK = 40_960
SPECS = (search_r1.WORKLOAD, r2e_gym.WORKLOAD, dapo_math.WORKLOAD)


def build(spec: WorkloadSpec, seed: int = 0, limit_tok: int = LIMIT_TOK, **options: object) -> SyntheticWorkload:
    return spec.build(parse_options(spec.options, {"num_steps": 20, **options}, spec.name), seed, limit_tok)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("step", [0, 10, 19])
def test_mean_length_is_the_stated_one_at_every_stage(spec: WorkloadSpec, step: int) -> None:
    # A step of 400 groups; without correlation in a group the error is that of independent draws.
    workload = build(spec, prompts=400, between_share=0.0, prompt_sigma=0.0, num_prompts=10_000)
    lengths = [t.total_tok for g in range(step * 400, step * 400 + 400) for t in workload.group(g)]
    error = np.std(lengths) / math.sqrt(len(lengths))
    assert abs(np.mean(lengths) - workload.mean_tok((step + 0.5) / 20)) < 3.5 * error
    assert error < 0.02 * np.mean(lengths)


@pytest.mark.parametrize(
    ("spec", "initial", "final", "mean"),
    [
        (search_r1.WORKLOAD, 2_000, 3_200, 2_700),
        (r2e_gym.WORKLOAD, 2_500, 11_500, 10_800),
        (dapo_math.WORKLOAD, 2_500, 11_500, 7_000),
    ],
)
def test_drift_over_the_500_steps_of_the_paper(spec: WorkloadSpec, initial: float, final: float, mean: float) -> None:
    workload = build(spec, num_steps=500)
    means = [workload.mean_tok(workload.progress(step)) for step in range(500)]
    assert (means[0], means[-1]) == (pytest.approx(initial, rel=0.05), pytest.approx(final, rel=1e-3))
    assert (workload.mean_tok(0.0), workload.mean_tok(1.0)) == (initial, pytest.approx(final))
    assert np.mean(means) == pytest.approx(mean, rel=1e-3)


def test_few_steps_span_the_whole_drift_and_have_its_mean() -> None:
    workload = build(r2e_gym.WORKLOAD, num_steps=4)
    assert [workload.progress(step) for step in range(6)] == [0.125, 0.375, 0.625, 0.875, 1, 1]
    twelve = build(r2e_gym.WORKLOAD, num_steps=12)
    assert np.mean([twelve.mean_tok(twelve.progress(step)) for step in range(12)]) == pytest.approx(10_800, rel=0.01)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.03), (0.5, 0.45, 0.55), (1.0, 0.999, 1.0)])
def test_share_of_the_variance_between_prompts(share: float, low: float, high: float) -> None:
    workload = build(dapo_math.WORKLOAD, between_share=share, prompt_sigma=0.0, prompts=600, sigma=0.5)
    logs = np.array([[math.log(t.generated_tok) for t in workload.group(g)] for g in range(600)])
    within = logs.var(axis=1, ddof=1).mean()
    between = logs.mean(axis=1).var(ddof=1) - within / 16
    assert low <= between / (between + within) <= high
    assert between + within == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_group_depends_on_seed_and_number_and_nothing_else(spec: WorkloadSpec) -> None:
    first, second, other_seed = build(spec), build(spec), build(spec, seed=1)
    forward = [first.group(g) for g in range(6)]
    second.profile(2)
    backward = [second.group(g) for g in reversed(range(6))]
    assert forward == backward[::-1]
    assert forward[0] == first.group(0)
    assert all(other_seed.group(g) != forward[g] for g in range(6))


def test_workloads_of_the_same_options_differ_by_name() -> None:
    options = parse_options(dapo_math.WORKLOAD.options, {}, "")
    one, two = (SyntheticWorkload(name, options, dapo_math.SOURCES, 0, LIMIT_TOK) for name in ("one", "two"))
    assert [t.total_tok for t in one.group(0)] != [t.total_tok for t in two.group(0)]


def test_a_data_set_is_gone_through_once_per_epoch_in_another_order() -> None:
    workload = build(r2e_gym.WORKLOAD, num_prompts=10)
    epochs = [[workload.group(g)[0].prompt_id for g in range(k, k + 10)] for k in (0, 10, 20)]
    assert [len(set(epoch)) for epoch in epochs] == [10, 10, 10]
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_prompt_keeps_its_own_length_over_epochs() -> None:
    workload = build(dapo_math.WORKLOAD, num_prompts=1, between_share=1.0, initial_tok=5e3, final_tok=5e3, mean_tok=5e3)
    groups = [workload.group(g) for g in (0, 1, 2)]
    assert len({t.total_tok for group in groups for t in group}) == 1
    assert len({t.prompt_tok for group in groups for t in group}) == 1


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_the_profile_is_initial_and_meets_no_group(spec: WorkloadSpec) -> None:
    workload = build(spec, num_steps=500)
    profile = workload.profile(300)
    assert len(profile) == 300 * 16
    assert profile[: 16 * 5] == workload.profile(5)
    assert not {t.prompt_id for t in profile} & {workload.group(g)[0].prompt_id for g in range(300)}
    assert min(t.group for t in profile) == PROFILE_GROUP
    lengths = np.array([t.total_tok for t in profile]).reshape(300, 16).mean(axis=1)
    assert abs(lengths.mean() - workload.options.initial_tok) < 3.5 * lengths.std() / math.sqrt(300)


def test_beyond_the_limit_a_trajectory_is_truncated_unrewarded_and_exactly_as_long() -> None:
    workload = build(r2e_gym.WORKLOAD, limit_tok=16_384)
    rows = [t for g in range(20, 40) for t in workload.group(g)]
    cut = [t for t in rows if t.status == "truncated"]
    assert 10 < len(cut) < len(rows)
    assert {t.total_tok for t in cut} == {16_384} and {t.reward for t in cut} == {0.0}
    assert max(t.total_tok for t in rows) == 16_384
    assert workload.warnings and "are cut at the limit of 16,384 tokens" in workload.warnings[0]
    assert build(r2e_gym.WORKLOAD).warnings == ()


def test_reward_follows_its_curve() -> None:
    workload = build(search_r1.WORKLOAD, prompts=600)
    for step, want in ((0, workload.mean_reward(0.025)), (19, workload.mean_reward(0.975))):
        groups = np.array([[t.reward for t in workload.group(g)] for g in range(step * 600, step * 600 + 600)])
        assert abs(groups.mean() - want) < 3.5 * groups.mean(axis=1).std() / math.sqrt(600)
    assert workload.mean_reward(0.975) == pytest.approx(0.45, abs=0.01)


def test_no_prompt_takes_more_than_an_eighth_of_the_context() -> None:
    workload = build(r2e_gym.WORKLOAD, limit_tok=8_192, prompt_sigma=1.0, final_tok=4_000, mean_tok=3_000)
    assert max(workload.group(g)[0].prompt_tok for g in range(200)) == 1_024


@pytest.mark.parametrize(
    ("changes", "limit_tok", "message"),
    [
        ({"final_tok": 41_000, "mean_tok": 30_000}, LIMIT_TOK, "must stay below the context limit of 40,960"),
        ({}, 8_192, "must stay below the context limit of 8,192"),
        ({}, 2_048, "a median prompt takes more than 1/8"),
        ({"initial_tok": 500}, LIMIT_TOK, "the mean prompt alone has 628 tokens"),
        ({"mean_tok": 12_000}, LIMIT_TOK, "workload r2e-gym"),
    ],
)
def test_lengths_that_cannot_be_are_refused(changes: dict[str, float], limit_tok: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        build(r2e_gym.WORKLOAD, limit_tok=limit_tok, **changes)


@pytest.mark.parametrize("spec", (*SPECS, fixed_length.WORKLOAD, trace.WORKLOAD), ids=lambda spec: spec.name)
def test_unknown_options_are_refused_with_the_nearest(spec: WorkloadSpec) -> None:
    required = {"file": "x.parquet"} if spec is trace.WORKLOAD else {}
    with pytest.raises(ConfigError, match="did you mean 'group_size'"):
        parse_options(spec.options, {"group_sise": 8, **required}, f"workload {spec.name}")


@pytest.mark.parametrize("module", [search_r1, r2e_gym, dapo_math, fixed_length, trace], ids=lambda m: m.__name__)
def test_every_option_has_a_source_sentence_and_no_source_is_left_over(module) -> None:
    used = set(module.WORKLOAD.options.model_fields)
    assert used == set(module.SOURCES)
    for name, (provenance, source) in module.SOURCES.items():
        assert provenance in ("reported", "derived", "assumed"), name
        assert source.endswith(".") and len(source.split()) >= 3, name


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_parameters_tell_what_the_user_changed(spec: WorkloadSpec) -> None:
    parameters = {p.name: p for p in build(spec, num_steps=500, sigma=0.9).parameters()}
    assert set(spec.options.model_fields) < set(parameters)
    assert parameters["sigma"].value == "0.9"
    assert parameters["sigma"].provenance == "assumed"
    assert parameters["sigma"].source.startswith("Set for this run; the default is ")
    assert parameters["group_size"].provenance == "reported"
    assert parameters["one_step"].value == "1 training steps"


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_groups_are_what_the_protocol_and_the_records_ask_for(spec: WorkloadSpec) -> None:
    workload = build(spec)
    assert isinstance(workload, Workload)
    assert isinstance(workload.options, SyntheticOptions) and isinstance(workload.options, Options)
    assert workload.batch == workload.options.prompts * 16
    for index in (0, 3, 1_000):
        group = workload.group(index)
        assert [(t.group, t.sample) for t in group] == [(index, k) for k in range(16)]
        assert len({(t.prompt_id, t.prompt_tok) for t in group}) == 1
        assert all(problem_in(t) is None for t in group)
        assert all(type(turn.generated_tok) is int for t in group for turn in t.turns)


def test_shapes_of_the_defaults() -> None:
    assert {spec.name: build(spec).batch for spec in SPECS} == {"search-r1": 128, "r2e-gym": 32, "dapo-math": 48}
    math_group = build(dapo_math.WORKLOAD).group(0)
    assert all(len(t.turns) == 1 and t.observed_tok == 0 for t in math_group)
