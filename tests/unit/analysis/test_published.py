"""Published rows are whole, and the overlap model gives what a reader computes by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from analysis.published import PublishedRow, predict_rows
from analysis.published_model import load_published
from libra.core.errors import ConfigError

ROWS = {row.id: row for row in predict_rows()}


def ranges(row: PublishedRow) -> dict[str, tuple[float, float, bool]]:
    return {item.assumption: (round(item.low_s, 2), round(item.high_s, 2), item.applies) for item in row.predictions}


def test_every_published_table_is_there() -> None:
    sources = {row.source.split(",")[0] for row in ROWS.values()}
    assert sources == {
        "verl docs/advance/fully_async.md", "verl docs/advance/one_step_off.md", "vime issue 358",
        "OpenRLHF issue 712", "verl-omni pull request 575", "verl issue 658",
    }  # fmt: skip
    observed = {row.observed_s for row in ROWS.values()}
    assert {294.77, 189.26, 150.63, 282.75, 221.36, 489.953, 231.34, 171.30, 146.11, 520.0, 566.0} <= observed
    assert {104.0, 250.4, 307.8, 73.067, 118.574, 166.683, 4.38, 23.70} <= observed
    assert {790.10, 365.28, 356.30, 497.89, 375.47, 484.623, 749.0, 699.0, 178.3, 377.9} <= {
        row.before_s for row in ROWS.values()
    }
    assert all(row.url.startswith("https://") for row in ROWS.values())


def test_a_one_to_one_split_with_and_without_the_log_prob_pass() -> None:
    row = ROWS["verl-7b-64-64"]
    assert ranges(row) == {
        "old log-probabilities recomputed": (335.46, 355.7, False),  # 2 x (113.81 + 53.92); 2 x 177.85
        "old log-probabilities not recomputed": (227.62, 355.7, True),  # 2 x 113.81; 2 x 177.85
    }
    assert row.position == "below"
    assert row.step_speedup == pytest.approx(356.30 / 150.63)
    applied = row.predictions[1]
    assert applied.error_low == pytest.approx(227.62 / 150.63 - 1.0)
    assert row.training_exponent == pytest.approx(math.log(113.16 / 113.81) / math.log(2.0))  # all but none


def test_a_skewed_split_keeps_the_reference_pass() -> None:
    row = ROWS["verl-30b-96-32"]
    low, high, applies = ranges(row)["old log-probabilities not recomputed"]
    assert (low, high, applies) == (428.52, 464.07, True)  # 4 x (86.27 + 20.86); 348.05 x 128 / 96
    assert row.training_exponent == pytest.approx(math.log((206.63 + 50.05) / (86.27 + 20.86)) / math.log(4.0))


def test_one_step_off_recomputes_old_log_probabilities() -> None:
    row = ROWS["verl-one-step-off-fsdp2-4-12"]
    low, high, applies = ranges(row)["old log-probabilities recomputed"]
    assert applies
    assert low == pytest.approx((88 + 286) * 16 / 12, abs=0.01)
    assert high == 321 * 4
    assert row.position == "inside"


def test_balanced_split_of_128() -> None:
    tail, throughput = ROWS["verl-7b-64-64"].balanced
    # Tail-bound: 177.85 s however many; training fits under it from 113.81 x 128 / 177.85 = 81.9 GPUs, so 88.
    assert (tail.rollout_gpus, tail.train_gpus, tail.step_s) == (40, 88, 177.85)
    # Throughput-bound: 177.85 x 128 / r against 113.81 x 128 / (128 - r) cross at r = 78.06, so 80.
    assert (throughput.rollout_gpus, throughput.train_gpus) == (80, 48)
    assert throughput.step_s == pytest.approx(113.81 * 128 / 48)
    assert tail.speedup == pytest.approx(356.30 / 177.85)


def test_the_balanced_split_is_the_best_of_all_splits() -> None:
    before, (_, throughput) = load_published().sync["verl-7b-64"], ROWS["verl-7b-32-32"].balanced
    steps = [max(before.generation_s * 64 / r, before.update_s * 64 / (64 - r)) for r in range(4, 64, 4)]
    assert throughput.step_s == pytest.approx(min(steps))


def test_disaggregated_stages_are_not_scaled() -> None:
    row = ROWS["vime-4b-2-2"]
    (only,) = row.predictions
    assert (only.low_s, only.high_s) == (97.2, 97.2)
    assert only.error_low == pytest.approx(-0.065, abs=0.001)
    assert row.position == "above"


def test_a_bound_without_an_observation() -> None:
    row = ROWS["openrlhf-70b"]
    assert row.bound_speedup == pytest.approx((2252 + 1800) / 2252)  # 1.80
    assert (row.position, row.balanced, row.observed_s) == ("not observed", (), None)


def test_lending_fills_the_wait() -> None:
    row = ROWS["verl-omni-1-2-switch"]
    (only,) = row.predictions
    # s + 2 (s - 247.5 - 12.4) = 377.9
    assert only.low_s == pytest.approx((377.9 + 2 * 259.9) / 3)
    assert only.high_s == pytest.approx(377.9 + 12.4)
    assert only.error_low == pytest.approx(-0.028, abs=0.001)
    assert row.split == "1:2 + 2 lent"
    assert row.bound_speedup == pytest.approx(377.9 / only.low_s)


def test_a_fourth_gpu_leaves_the_trainer_as_the_bound() -> None:
    (only,) = ROWS["verl-omni-2-2"].predictions
    assert (only.low_s, only.high_s) == (247.5, 377.9)


def test_the_longest_response_sets_the_time_not_the_total() -> None:
    for name in ("verl-658-rank-0", "verl-658-rank-4", "verl-658-rank-3"):
        longest, total = ROWS[name].predictions
        assert longest.applies and not total.applies
        assert longest.error_low is not None and longest.error_high is not None
        assert total.error_low is not None and total.error_high is not None
        assert max(abs(longest.error_low), abs(longest.error_high)) < 0.05
        assert max(abs(total.error_low), abs(total.error_high)) > 0.30
    rank_0 = ROWS["verl-658-rank-0"].predictions[0]
    assert rank_0.low_s == pytest.approx(118.574 / 6233 * 3768)
    assert rank_0.high_s == pytest.approx(166.683 / 8412 * 3768)


def test_printed_stages_that_do_not_add_up_are_shown() -> None:
    now, first = ROWS["verl-7b-16-16"], ROWS["verl-7b-16-16-first-print"]
    assert now.stages_share == pytest.approx((21.26 + 313.81) / 294.77)  # 1.14: more than the step
    assert first.stages_share == pytest.approx((21.26 + 269.80) / 294.77)  # 0.99
    assert first.stages_share_before is not None and now.stages_share_before is not None
    assert abs(first.stages_share_before - 1.0) < 0.02 < abs(now.stages_share_before - 1.0)


def test_no_row_can_be_simulated_and_each_says_why() -> None:
    assert ROWS["verl-7b-64-64"].not_simulable == "not simulable: missing lengths"
    assert ROWS["verl-retool-16-16"].not_simulable == "not simulable: missing batch, lengths"
    assert ROWS["openrlhf-70b"].not_simulable == "not simulable: missing hardware, model, batch, lengths"
    assert all(row.not_simulable for row in ROWS.values())


def test_a_row_is_simulable_when_all_is_known() -> None:
    whole = load_published().sync["verl-7b-64"].model_copy(update={"mean_tok": 5000.0})
    assert whole.not_simulable == ""


def test_weight_sync_rows_give_a_bandwidth_and_no_prediction() -> None:
    row = ROWS["verl-weights-30b-a3b"]
    assert row.predictions == ()
    assert row.note == "One copy of the weights at 3.87 GB/s, then at 13.9 GB/s."  # 61 GB over 15.76 s and 4.38 s


BROKEN = """
[source.s]
title = "t"
url = "https://example.org"
[sync.a]
source = "s"
colocated = true
generation_s = 1.0
update_s = 1.0
[[async]]
id = "x"
sync = "a"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BROKEN + "steps = 3\n", r"async x: unknown key.*steps(.|\n)*did you mean 'step_s'"),
        (BROKEN.replace('sync = "a"', 'sync = "b"'), "async x: unknown sync"),
        (BROKEN.replace('source = "s"', 'source = "z"'), "unknown source"),
        (BROKEN.replace("update_s = 1.0", "update_s = -1.0"), "update_s: Input should be greater than 0"),
        (BROKEN + '[[async]]\nid = "x"\nsync = "a"\n', "id is used twice"),
        (BROKEN + "[[asink]]\n", "unknown key(.|\n)*did you mean 'async'"),
        ("[[async", "cannot be read"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "published.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        predict_rows(path)
