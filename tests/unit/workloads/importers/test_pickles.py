"""Pickles are read as data: what torch writes is understood, and whatever could run, lie or explode is refused."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra.core.errors import TraceError
from libra.workloads.importers import ImportResult, import_dump
from libra.workloads.importers.arrays import Array
from libra.workloads.importers.pickles import PickleError, read_pickle
from libra.workloads.importers.plain import Plain, PlainError

Imported = Callable[..., ImportResult]
PROTOCOLS = (2, 3, 4, 5)
SAMPLE = {"group_index": 0, "index": 0, "tokens": [1] * 9, "response_length": 4, "prompt": "q", "status": "completed"}


class Runs:
    """What a hostile file holds: loading it by `pickle` would call `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def archive(path: Path, content: bytes, **storages: bytes) -> Path:
    """A file as torch.save makes it, around any pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("dump/data.pkl", content)
        for key, raw in storages.items():
            file.writestr(f"dump/data/{key.removeprefix('k')}", raw)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        import_dump("slime", [path])
    return str(caught.value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=100, deadline=None)
@given(value=plain)
def test_plain_values_are_read_as_pickle_reads_them(protocol: int, value: Any) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_numpy_and_collections_leave_in_a_dump(protocol: int) -> None:
    value = {
        "a": np.arange(4),
        "b": np.float32(0.5),
        "c": OrderedDict(x=1),
        "d": {1},
        "e": np.zeros((2, 2)),
        "f": np.bool_(1),
    }
    if protocol == 5:
        value.pop("a"), value.pop("e")  # numpy writes buffers there, which torch.save never asks for
    found = read_pickle(pickle.dumps(value, protocol))
    assert (found["b"], found["c"], found["d"], found["f"]) == (0.5, {"x": 1}, [1], True)
    if protocol < 5:
        assert found["a"].numbers() == [0, 1, 2, 3]
        assert (found["e"].shape, found["e"].numbers()) == ((2, 2), None)


def test_a_tensor_is_read_from_its_storage(dumps: Path) -> None:
    with zipfile.ZipFile(dumps / "slime" / "rollout_3.pt") as file:
        storages = {name.removeprefix("rollout_3/data/"): file.read(name) for name in file.namelist()}
    found = read_pickle(storages["rollout_3/data.pkl"], storages.__getitem__)
    tokens = found["samples"][1]["tokens"]
    assert isinstance(tokens, Array)
    assert tokens.numbers() == list(range(18))
    assert found["samples"][0]["rollout_top_p_token_offsets"].numbers() == list(range(16))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("hostile", "name"),
    [
        (Runs(os.system, "touch PROOF"), "system"),
        (Runs(eval, "open('PROOF', 'w')"), "eval"),
        (Runs(getattr, "a", "upper"), "getattr"),
        (Runs(__import__, "os"), "__import__"),
        (Path("x"), "PosixPath"),
        (io.BytesIO(b"x"), "BytesIO"),
        (np.array([{}], dtype=object), "array of objects"),
    ],
)
def test_hostile_pickles_run_nothing(
    protocol: int, hostile: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"samples": [SAMPLE | {"metadata": hostile}]}, protocol)
    path = archive(tmp_path / "rollout_1.pt", content)
    assert "the pickle inside was not loaded" in refusal(path)
    assert name in refusal(path) or "not loaded: " in refusal(path)
    assert not (tmp_path / "PROOF").exists()


def test_every_operation_that_calls_or_imports_is_refused() -> None:
    """INST, OBJ, NEWOBJ, NEWOBJ_EX and the extension codes, which no plain value needs; text PUTs of any size."""
    for code in (
        b"i",
        b"o",
        b"\x81",
        b"\x92",
        b"\x82",
        b"\x83",
        b"\x84",
        b"P",
        b"p",
        b"g",
        b"I",
        b"L",
        b"S",
        b"V",
        b"d",
    ):
        with pytest.raises(PickleError, match="is not needed for plain data: not run"):
            read_pickle(b"\x80\x02" + code + b"1\n1\n.")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x80\x02", "truncated"),
        (b"\x80\x02X\xff\xff\xff\xffab.", "truncated"),
        (b"\x80\x02\x8b\xff\xff\xff\xff.", "truncated"),
        (b"\x80\x02.", "takes more than it gave"),
        (b"\x80\x02(.", "a mark stands where a value belongs"),
        (b"\x80\x02]e.", "items without a mark"),
        (b"\x80\x02Nj\xff\xff\xff\x7f.", "recalls what was not stored"),
        (b"\x80\x02NNa.", "appends to what is no list"),
        (b"\x80\x02}(NNNu.", "sets items of what is no dict"),
        (b"\x80\x02}()Nu.", "a key of type tuple"),
        (b"\x80\x02N)R.", "no builder of plain data"),
        (b"\x80\x02NNb.", "sets the state of what has none"),
        (b"\x80\x02NQ.", "no tensor storage"),
        (b"\x80\x04NN\x93.", "a global without a name"),
        (b"\x80\x02ctorch\nload\n.", "refers to 'torch.load'"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "damaged: "),
        (b"\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R)b.", ""),
    ],
)
def test_damaged_pickles(content: bytes, why: str) -> None:
    try:
        read_pickle(content)
    except PickleError as error:
        assert why in str(error)
    else:
        assert not why


def test_bombs_are_refused_and_cost_nothing(tmp_path: Path) -> None:
    put_far = b"\x80\x02Nr\xff\xff\xff\xff."  # 64 GiB in the standard library's memory table
    assert read_pickle(put_far) is None
    text = b"X" + struct.pack("<I", 50_000) + b"a" * 50_000 + b"q\x00"
    encoded = b"c_codecs\nencode\nh\x00\x85R"
    with pytest.raises(PickleError, match="copies more than the file holds"):
        read_pickle(b"\x80\x02" + text + encoded * 9 + b".")
    nested = b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."
    with pytest.raises(PlainError, match="nested too deep"):
        Plain(10**9).of(read_pickle(nested))
    level: Any = [0]
    for _ in range(40):
        level = [level, level]
    path = archive(tmp_path / "laughs.pt", pickle.dumps({"samples": [SAMPLE | {"metadata": level}]}, 2))
    assert "nested too deep, or far larger than its file" in refusal(path)
    endless: list[Any] = []
    endless.append(endless)
    path = archive(tmp_path / "endless.pt", pickle.dumps({"samples": [SAMPLE | {"metadata": endless}]}, 2))
    assert "nested too deep" in refusal(path)
    path = archive(tmp_path / "huge.pt", pickle.dumps({"samples": [SAMPLE | {"label": 10**5000}]}, 2))
    assert "a number of more than 64 bits" in refusal(path)


def tensor_of(kind: bytes, key: bytes, offset: int, num: int, step: int) -> bytes:
    """A tensor of one dimension, as torch writes it."""
    numbers = [b"K" + bytes([each]) for each in (offset, num, step)]
    name = b"X" + struct.pack("<I", len(key)) + key
    stored = b"(X\x07\x00\x00\x00storagectorch\n" + kind + b"\n" + name + b"X\x03\x00\x00\x00cpuK\x04tQ"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + stored
        + numbers[0]
        + numbers[1]
        + b"\x85"
        + numbers[2]
        + b"\x85\x89}tR"
    )


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (tensor_of(b"LongStorage", b"0", 1, 3, 1), [6, 7, 8]),
        (tensor_of(b"LongStorage", b"0", 0, 2, 2), [5, 7]),
        (tensor_of(b"LongStorage", b"0", 0, 0, 1), []),
        (tensor_of(b"BFloat16Storage", b"0", 0, 2, 1), None),
        (tensor_of(b"LongStorage", b"0", 2, 3, 1), "reaches beyond its storage"),
        (tensor_of(b"LongStorage", b"0", 0, 200, 0), "or repeats it"),
        (tensor_of(b"LongStorage", b"7", 0, 1, 1), "the tensor storage '7' is missing"),
    ],
)
def test_tensors_stay_within_their_storage(tensor: bytes, found: Any, tmp_path: Path, imported: Imported) -> None:
    before = pickle.dumps({"samples": [SAMPLE | {"label": None}]}, 2)
    position = next(at for op, arg, at in pickletools.genops(before) if arg == "label")
    assert position, "the value after it is None"
    content = before.replace(b"label", b"tokns", 1)  # keep the real tokens, and put the tensor where the label was
    end = content.index(b"tokns") + len("tokns")
    put = 2 if content[end : end + 1] == b"q" else 0
    content = content[: end + put] + tensor + content[end + put + 1 :]
    path = archive(tmp_path / "r.pt", content, k0=struct.pack("<4q", 5, 6, 7, 8))
    if isinstance(found, str):
        assert found in refusal(path)
        return
    (row,) = [value for _, value in _load_rows(path)]
    assert row["tokns"] == found


def _load_rows(path: Path) -> list[tuple[Any, Any]]:
    from libra.workloads.importers.files import load

    return load(path).rows


def test_torch_files_that_are_no_rollouts(tmp_path: Path) -> None:
    weights = archive(tmp_path / "weights.pt", pickle.dumps({"layer.weight": 1}, 2))
    assert "a torch file without `samples`, so no rollout dump (it holds layer.weight)" in refusal(weights)
    assert "no dict" in refusal(archive(tmp_path / "a.pt", pickle.dumps({"samples": [7]}, 2)))
    bare = tmp_path / "bare.pt"
    bare.write_bytes(pickle.dumps({"samples": [SAMPLE]}))
    assert "a bare pickle: loading one may run code of its choice" in refusal(bare)


def test_a_bad_sample_loses_no_other(tmp_path: Path, imported: Imported) -> None:
    samples = [SAMPLE, SAMPLE | {"label": 2**70, "index": 1}, 7, SAMPLE | {"index": 2, "response_length": 5}]
    result = imported("auto", archive(tmp_path / "r.pt", pickle.dumps({"rollout_id": 3, "samples": samples}, 2)))
    assert [row.generated_tok for row in result.trajectories] == [4, 5]
    assert [(each.where.rsplit("/", 1)[-1], each.reason) for each in result.report.unread] == [
        ("r.pt, sample 2", "not loaded: a number of more than 64 bits"),
        ("r.pt, sample 3", "a sample is a int, no dict"),
    ]


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_damaged_torch_files_never_end_in_a_traceback(project_root: Path, data: st.DataObject) -> None:
    """Any bytes of a real pickle replaced: a value, or a `PickleError`."""
    with zipfile.ZipFile(project_root / "tests" / "data" / "slime" / "rollout_3.pt") as file:
        content = bytearray(file.read("rollout_3/data.pkl"))
        storages = {name.rsplit("/", 1)[-1]: file.read(name) for name in file.namelist() if "/data/" in name}
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    with suppress(PickleError, PlainError, KeyError):
        Plain(len(content)).of(read_pickle(bytes(content[:cut]), storages.__getitem__))
