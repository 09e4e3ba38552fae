from __future__ import annotations

import numpy as np
import pytest

from libra.core.errors import ConfigError
from libra.core.policy import Finished
from libra.cost.requests import compress, point_edges


def window(num: int, seed: int = 0) -> tuple[Finished, ...]:
    rng = np.random.default_rng(seed)
    return tuple(
        Finished(
            100, int(rng.lognormal(7, 1.2)) + 1, int(rng.lognormal(6, 1)), int(rng.integers(1, 9)), rng.uniform(0, 9)
        )
        for _ in range(num)
    )


def test_a_window_of_one_batch_is_kept_request_by_request() -> None:
    finished = window(8)
    requests = compress(finished, 8)
    assert requests.weight.tolist() == [1.0] * 8
    assert requests.total_tok.tolist() == pytest.approx(sorted(f.total_tok for f in finished))


def test_fault_9_tripling_the_history_does_not_change_the_step() -> None:
    once, thrice = compress(window(40), 40), compress(window(40) * 3, 40)
    for name in ("weight", "total_tok", "traffic_tok", "tool_s"):
        assert getattr(once, name) == pytest.approx(getattr(thrice, name))


@pytest.mark.parametrize(("num", "batch"), [(10, 32), (256, 32), (100, 64), (4096, 512), (7, 512)])
def test_sums_are_exact_under_compression(num: int, batch: int) -> None:
    finished = window(num)
    requests = compress(finished, batch)
    assert len(requests) == min(batch, 64)
    assert requests.batch == pytest.approx(batch)
    assert requests.sum("generated_tok") == pytest.approx(batch / num * sum(f.generated_tok for f in finished))
    assert requests.sum("square_tok") == pytest.approx(batch / num * sum(f.total_tok**2 for f in finished))


def test_fault_3_traffic_is_the_sum_over_requests() -> None:
    """Not (sum of G) x mean context, which is less whenever long requests also generate more."""
    short, long = Finished(0, 1000, 0, 1, 0.0), Finished(0, 30000, 0, 1, 0.0)
    requests = compress((short, long), 2)
    assert requests.sum("traffic_tok") == 1000**2 / 2 + 30000**2 / 2
    assert requests.sum("traffic_tok") > 31000 * (1000 + 30000) / 2 / 2


def test_the_tail_keeps_single_requests() -> None:
    edges = point_edges(512)
    assert len(edges) == 65
    assert np.diff(edges)[-32:].tolist() == [1.0] * 32
    assert np.diff(edges)[:32].tolist() == [15.0] * 32


def test_points_are_sorted_and_bounded_by_their_upper_end() -> None:
    requests = compress(window(1000), 128)
    assert np.all(np.diff(requests.total_tok) >= 0)
    assert np.all(requests.total_tok <= requests.upper_tok + 1e-9)


def test_no_history_is_an_error_that_says_how_to_mend_it() -> None:
    with pytest.raises(ConfigError, match="give the run a profile"):
        compress((), 32)
