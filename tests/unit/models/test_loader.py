"""Shapes against published parameter counts, and what a user's own file may get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from libra.core.errors import ConfigError
from libra.models import list_models, load_model
from libra.models.loader import FOLDER


def test_built_in_models() -> None:
    assert list_models() == (
        "qwen2.5-7b",
        "qwen3-14b",
        "qwen3-30b-a3b",
        "qwen3-32b",
        "qwen3-4b",
        "qwen3-8b",
        "tiny",
    )
    assert all(load_model(name).name == name for name in list_models())


@pytest.mark.parametrize(
    ("name", "total_b", "active_b"),
    [
        ("qwen3-4b", 4.0, 4.0),
        ("qwen3-8b", 8.2, 8.2),
        ("qwen3-14b", 14.8, 14.8),
        ("qwen3-32b", 32.8, 32.8),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen2.5-7b", 7.6, 7.6),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, total_b: float, active_b: float) -> None:
    """Model cards print one decimal. The MoE card's 3.3B counts embeddings and head once each, as here."""
    model = load_model(name)
    assert round(model.num_params / 1e9, 1) == total_b
    assert model.num_active_params / 1e9 == pytest.approx(active_b, abs=0.06)


def test_head_dim_is_published_not_derived() -> None:
    for name in ("qwen3-4b", "qwen3-30b-a3b"):
        model = load_model(name)
        assert model.head_dim == 128 != model.hidden // model.num_heads


def test_kv_bytes_of_one_token() -> None:
    assert load_model("qwen3-14b").kv_bytes_per_tok == 2 * 40 * 8 * 128 * 2 == 163_840
    assert load_model("qwen3-30b-a3b").kv_bytes_per_tok == 2 * 48 * 4 * 128 * 2


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'qwen3-14b'"):
        load_model("qwen3_14b")


def _write(folder: Path, old: str, new: str) -> Path:
    path = folder / "mine.toml"
    path.write_text((FOLDER / "qwen3-4b.toml").read_text().replace(old, new))
    return path


def test_own_file(tmp_path: Path) -> None:
    assert load_model(_write(tmp_path, '"qwen3-4b"', '"mine"')).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ffn =", "fnn =", r"unknown key \(got 'fnn'\)\n  did you mean 'ffn'"),
        ("ffn = 9728\n", "", "key 'ffn' is missing"),
        ("ffn = 9728", "ffn = -1", "greater than 0"),
        ("ffn = 9728", "ffn = 9728.5", "valid integer"),
        ("ffn = 9728", 'ffn = "9728"', "valid integer"),
        ("ffn = 9728", "ffn = = 1", r"broken TOML: .*line 7"),
        ("num_kv_heads = 8", "num_kv_heads = 7", "no multiple"),
        ("ffn =", "num_experts = 4\nffn =", "experts_per_tok must lie between"),
    ],
)
def test_what_a_file_may_get_wrong(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(_write(tmp_path, old, new))


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_model(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        load_model(binary)
