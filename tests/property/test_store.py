"""Any cell has one identity, whatever the order of its overrides; any history leaves whole, readable files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.events import PipelineSpec
from libra.results.cell import Cell
from libra.results.schemas import Facts
from libra.results.store import Metrics, Store

VALUES = (
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('abé\n"', max_size=4)
)
KEYS = st.sampled_from(("policy.a", "policy.b", "workload.c", "sim.d", "pipeline.kind"))
NAMES = st.text("abc-019", min_size=1, max_size=8)


@st.composite
def cells(draw: st.DrawFn) -> Cell:
    names = [draw(NAMES) for _ in range(5)]
    overrides = draw(st.dictionaries(KEYS, VALUES, max_size=4))
    return Cell.make(*names, seed=draw(st.integers(0, 2**31)), overrides=overrides)


@settings(deadline=None)
@given(cells())
def test_identity_survives_json_and_any_order_of_overrides(cell: Cell) -> None:
    back = msgspec.json.decode(msgspec.json.encode(cell), type=Cell)
    assert back == cell and back.identity("c") == cell.identity("c")
    overrides = dict(reversed(cell.overrides))
    names = (cell.study, cell.workload, cell.cluster, cell.model, cell.policy)
    again = Cell.make(*names, seed=cell.seed, overrides=overrides)
    assert again.identity("c") == cell.identity("c")


@settings(deadline=None)
@given(st.lists(cells(), max_size=6))
def test_different_cells_have_different_identities(found: list[Cell]) -> None:
    """Different in anything but the study; compared as JSON, since Python holds 1 and True for equal."""
    keys = {cell.key for cell in found}
    assert len({cell.identity("c") for cell in found}) == len(keys)


ACTIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(("done", "failed", "cancelled", "died", "index", "newer"))),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(ACTIONS)
def test_any_history_can_be_read(actions: list[tuple[int, str]]) -> None:
    """A model of the store beside the store: the last action on a cell decides its state, attempts add up."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "runs")
        state: dict[tuple[int, str], tuple[str, int]] = {}
        code, order = dict.fromkeys(range(3), "old"), []
        for seed, action in actions:
            if action == "newer":
                code[seed] = "new"
            cell = Cell.make("study", "w", "c", "m", "p", seed=seed)
            store.add_to_study("study", [(cell, code[seed])])
            order = [seed, *(other for other in order if other != seed)]
            if action in ("index", "newer"):
                continue
            key = (seed, code[seed])
            with store.claim(cell, code[seed]) as cell_dir:
                cell_dir.start()
                if action == "done":
                    cell_dir.write_json("metrics.json", Metrics({"steps": 1.0}, {}, Facts(8, PipelineSpec())))
                if action != "died":
                    cell_dir.set(action, "why")  # type: ignore[arg-type]
            state[key] = ("cancelled" if action == "died" else action, state.get(key, ("", 0))[1] + 1)
        if not order:
            return
        found = store.cells("study")
        assert [cell.cell.seed for cell in found] == order
        expected = [state.get((seed, code[seed]), ("pending", 0)) for seed in order]
        assert [(cell.status.state, cell.status.attempts) for cell in found] == expected
        assert all((cell.metrics is not None) == (cell.status.state == "done") for cell in found)
        assert not list(store.root.rglob(".tmp-*")) and not list(store.root.rglob("lock"))
