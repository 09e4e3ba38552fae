"""A GPU's own table: rows are checked, known constants come back from synthetic points, the rest stays A100's."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libra.backends.sim.constants import Constants, folds, load_constants
from libra.backends.sim.gpus import constants_of, fit_of, points_of, provenance_of
from libra.backends.sim.gpus.check import check
from libra.backends.sim.gpus.fit import PARTS, fit
from libra.backends.sim.gpus.points import SIZES, GpuPoint, parse_point, read_points, write_row
from libra.backends.sim.gpus.predict import PREDICTORS, predict_s
from libra.backends.sim.options import SimOptions
from libra.backends.sim.range import outside
from libra.clusters import load_cluster
from libra.core.errors import ConfigError
from libra.core.hardware import Gpu
from libra.models import load_model

MADE_UP = Gpu("made-up", 500.0, 80.0, 3000.0, 400.0)
H100 = load_cluster("h100x64").gpu
A100 = load_constants()

TRUE: dict[str, float | tuple[float, ...]] = {
    "gemm_overhead_s": 4e-6,
    "gemm_compute_share": 0.6,
    "gemm_memory_share": 0.9,
    "gemm_power": 3.0,
    "decode_overhead_s": 9e-6,
    "decode_per_seq_head_s": 2e-9,
    "decode_memory_share": 0.6,
    "prefill_overhead_s": 25e-6,
    "prefill_tile_share": 0.4,
    "prefill_key_s": 8e-8,
    "prefill_memory_share": 0.3,
    "elementwise_overhead_s": 1e-6,
    "elementwise_memory_share": 0.65,
    "moe_overhead_s": 40e-6,
    "moe_memory_share": 0.5,
    "moe_compute_share": 0.3,
    "moe_power": 1.4,
    "moe_hit_power": 0.9,
    "custom_tp2_s": 3e-6,
    "custom_tp2_gb_s": 150.0,
    "custom_tp4_s": 8e-6,
    "custom_tp4_gb_s": 70.0,
    "nccl_latency_s": (20e-6, 50e-6, 70e-6),
    "nccl_bus_gb_s": (90.0, 110.0, 120.0),
    "step_overhead_s": 4e-3,
    "step_per_seq_s": 30e-6,
    "train_gemm_factor": 1.3,
    "train_elementwise_factor": 2.0,
    "backward_compute_share": 0.3,
}
"""Constants that no A100 has."""


def grid() -> list[tuple[str, str]]:
    """Points enough to determine every constant."""
    found = [("gemm", f"m={m} n={n} k={n}") for m in (1, 16, 256, 1024, 8192) for n in (512, 4096, 8192)]
    shape = "heads=32 kv_heads=8 head_dim=128"
    found += [("decode_attention", f"batch={b} context_tok={c} {shape}") for b in (1, 64, 512) for c in (128, 8192)]
    lengths = ((1, 16), (1, 128), (1, 1024), (1, 4096), (4, 8192), (1, 16384), (256, 128), (64, 256))
    found += [("prefill_attention", f"batch={b} length_tok={n} heads=32 head_dim=128") for b, n in lengths]
    found += [("elementwise", f"num_bytes={2**power}") for power in (10, 20, 24, 28)]
    experts = "hidden=2048 ffn=768 experts=128 experts_per_tok=8"
    found += [("moe", f"tok={4**power} tp={tp} {experts}") for power in range(8) for tp in (1, 4)]
    found += [("engine_all_reduce", f"gpus={n} num_bytes={2**power}") for n in (2, 4) for power in (13, 17, 20, 22)]
    found += [("nccl_all_reduce", f"gpus={n} num_bytes={2**power}") for n in (2, 4, 8) for power in (16, 24, 28)]
    found += [("decode_step", f"model=qwen3-8b tp=1 seqs={n} context_tok=100") for n in (1, 16, 64, 128)]
    found += [
        ("train_step", f"model={model} tp=1 dp=1 seqs=8 length_tok={n} micro_batch_tok={n} recompute=0")
        for model in ("qwen3-4b", "qwen3-8b")
        for n in (512, 4096, 16384)
    ]
    return found


def measured(constants: Constants) -> list[GpuPoint]:
    """The grid with the times that the truth has under `constants`."""
    points = [parse_point(f"{kind},{sizes},1.0,made up", "here") for kind, sizes in grid()]
    return [msgspec.structs.replace(point, time_s=predict_s(MADE_UP, constants, point)) for point in points]


# -- fits --------------------------------------------------------------------------------------------------------------


def test_known_constants_come_back_within_one_percent() -> None:
    found = fit(MADE_UP, measured(msgspec.structs.replace(A100, **TRUE)))
    assert {name for part in PARTS for name in part.constants} == set(TRUE)
    for name, value in TRUE.items():
        assert getattr(found.constants, name) == pytest.approx(value, rel=0.01), name
    assert found.kept == ("custom_tp8_s", "mixed_reads_per_head")


def test_what_no_point_determines_stays_a100s() -> None:
    points = [point for point in measured(msgspec.structs.replace(A100, **TRUE)) if point.kind == "gemm"]
    found = fit(MADE_UP, points)
    same = {name for name in A100.__struct_fields__ if getattr(found.constants, name) == getattr(A100, name)}
    assert set(A100.__struct_fields__) - same == {name for name in TRUE if name.startswith("gemm_")}
    assert found.origins["gemm_power"] == ("gemm", 15)
    assert fit(MADE_UP, points[:4]).constants == A100, "four points fit any four constants"
    assert fit(MADE_UP, ()).constants == A100


def test_the_table_of_eight_is_met_on_the_gpus_own_link() -> None:
    times = {8192: 5e-6, 131072: 9e-6, 4194304: 40e-6}
    points = [GpuPoint("engine_all_reduce", (8, size), time_s) for size, time_s in times.items()]
    found = fit(MADE_UP, points)
    for point in points:
        assert predict_s(MADE_UP, found.constants, point) == pytest.approx(point.time_s)


def test_every_kind_can_be_predicted() -> None:
    assert set(PREDICTORS) == set(SIZES)


# -- the H100 that ships -----------------------------------------------------------------------------------------------


def test_the_h100_is_nearer_to_its_table_than_an_a100() -> None:
    errors = {each.kind: each for each in check(H100)}
    assert sum(each.num_points for each in errors.values() if each.fitted) == 291
    for kind, each in errors.items():
        if each.fitted:
            # A100's tiles of prefill attention fit the H100 nearly as well as its own.
            own, unseen = (0.95, 0.97) if kind == "prefill_attention" else (0.83, 0.9)
            assert each.mean < own * each.with_a100, kind
            assert each.held_out is not None
            assert each.held_out < unseen * each.with_a100, kind
    assert {kind for kind, each in errors.items() if not each.fitted} == {"gpustack_blind", "prime_rl"}


def test_its_constants_say_where_they_come_from() -> None:
    known, constants = provenance_of(H100), constants_of(H100)
    assert known["gemm_power"].source == "H100-SXM5-80GB.csv: 100 gemm points"
    assert (known["gemm_power"].kind, known["gemm_power"].value) == ("fitted", constants.gemm_power)
    assert known["mixed_reads_per_head"].value == A100.mixed_reads_per_head
    assert provenance_of(load_cluster("a800x48").gpu)["gemm_power"].value == A100.gemm_power


def test_its_runs_say_what_is_taken_from_a100() -> None:
    (warning,) = outside(load_cluster("h100x64"), load_model("qwen3-14b"), [], 40_960)
    assert warning.startswith(
        "GPU H100-SXM5-80GB: measured in H100-SXM5-80GB.csv: gemm, decode_attention, prefill_attention, moe, "
        "engine_all_reduce, nccl_all_reduce; taken from A100: elementwise_overhead_s, elementwise_memory_share, "
        "step_overhead_s, step_per_seq_s, train_gemm_factor, train_elementwise_factor, backward_compute_share, "
        "mixed_reads_per_head; 24 runs of gpustack_blind are predicted -"
    )


def test_the_worlds_of_the_folds_leave_a_fitted_gpu_alone() -> None:
    own, world = fit_of(H100), SimOptions(serving_fold="qwen_speed", replace="gemm_power=2")
    constants = world.constants(own.constants, own.origins)
    assert constants.gemm_memory_share == own.constants.gemm_memory_share
    assert constants.mixed_reads_per_head == folds()["serving"]["qwen_speed"]["mixed_reads_per_head"]
    assert constants.gemm_power == 2.0


# -- tables of one's own -----------------------------------------------------------------------------------------------


def own_cluster(folder: Path, rows: str) -> Path:
    """A cluster file whose GPU has a table beside it."""
    text = (Path(__file__).parents[3] / "libra" / "clusters" / "h100x64.toml").read_text()
    (folder / "own.toml").write_text(text.replace("[gpu]", '[gpu]\nmeasured = "own.csv"').replace("H100", "H999"))
    (folder / "own.csv").write_text(rows)
    return folder / "own.toml"


def test_a_table_beside_the_cluster_file_is_taken(tmp_path: Path) -> None:
    times = {1: 2e-5, 16: 2.1e-5, 256: 3e-5, 1024: 8e-5, 8192: 6e-4}
    rows = [f"gemm,m={m} n=4096 k=4096,{time_s},mine" for m, time_s in times.items()]
    gpu = load_cluster(own_cluster(tmp_path, "# mine\n" + "\n".join(["kind,sizes,time_s,source", *rows]))).gpu
    assert gpu.measured == str(tmp_path / "own.csv")
    assert fit_of(gpu).kinds == ("gemm",)
    assert [write_row(point) for point in points_of(gpu)] == rows


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("m,n,k\n", r"own\.csv: the first line is no header\n  to mend: begin with `kind,sizes,time_s,source`"),
        ("gem,m=1 n=1 k=1,1,x", r"own\.csv:2: unknown kind \(got 'gem'\)\n  did you mean 'gemm'\?"),
        (
            "gemm,m=1 n=1,1,x",
            r"own\.csv:2: sizes of gemm: no k \(got 'm=1 n=1'\)\n  to mend: m=\.\.\. n=\.\.\. k=\.\.\.",
        ),
        ("gemm,m=1 n=1 k=0,1,x", r"own\.csv:2: k is no positive whole number \(got '0'\)"),
        ("gemm,m=1 n=1 k=1,0,x", r"own\.csv:2: time_s is no positive number \(got '0'\)"),
        ("gemm,m=1 n=1 k=1,1", r"own\.csv:2: 3 columns"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, rows: str, message: str) -> None:
    own_cluster(tmp_path, rows if rows.startswith("m,") else f"kind,sizes,time_s,source\n{rows}\n")
    with pytest.raises(ConfigError, match=message):
        read_points(tmp_path / "own.csv")


def test_a_missing_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the table of measured points: No such file"):
        read_points(tmp_path / "absent.csv")


def test_held_out_points_are_predicted_by_the_other_half(tmp_path: Path) -> None:
    """Every second point is three times slower: each half alone is met, and misses the other by that factor."""
    points = [each for each in measured(A100) if each.kind == "elementwise"] * 3
    lines = [
        write_row(msgspec.structs.replace(each, time_s=each.time_s * (1 + 2 * (number % 2))))
        for number, each in enumerate(points)
    ]
    table = tmp_path / "halves.csv"
    table.write_text("\n".join(["kind,sizes,time_s,source", *lines]) + "\n", encoding="utf-8")
    (found,) = check(msgspec.structs.replace(MADE_UP, measured=str(table)))
    assert found.held_out is not None
    assert found.held_out > 1.2, "half of them +200 %, half of them -67 %"
