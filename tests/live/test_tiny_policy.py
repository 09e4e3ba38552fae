"""The tiny policy: its tokenizer loses nothing, its weights are a function of the seed, and it learns from what it is
shown. The environment is a toy with one tool (`toy.py`)."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="needs the extra `live`")

from libra.backends.live.tiny.model import FFN, HIDDEN, MAX_CONTEXT_TOK, new_model  # noqa: E402
from libra.backends.live.tiny.policy import fingerprint, load_policy, make_policy  # noqa: E402
from libra.backends.live.tiny.rollout import roll_out, sample_turns, success  # noqa: E402
from libra.backends.live.tiny.tokenizer import (  # noqa: E402
    VOCAB,
    prompt_ids,
    text_ids,
    train_tokenizer,
)
from libra.backends.live.tiny.warmup import (  # noqa: E402
    IGNORED,
    WarmupOptions,
    batches,
    encode,
    rate_at,
    warm_up,
)
from libra.core.errors import ConfigError  # noqa: E402
from libra.models.loader import load_model  # noqa: E402
from libra.workloads.environments.base import Demonstration, Segment  # noqa: E402


def _toy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("toy", Path(__file__).with_name("toy.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["toy"] = module  # dataclasses and annotations look their module up
    spec.loader.exec_module(module)
    return module


TOY = _toy()
TAGS = ("<answer>", "</answer>", "<info>", "</info>", "<look>", "</look>")


@pytest.fixture(scope="module", autouse=True)
def one_core() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def environment():
    return TOY.Toy()


@pytest.fixture(scope="module")
def tokenizer(environment):
    return train_tokenizer([environment], seed=0)


@pytest.fixture(scope="module")
def policy(environment, tmp_path_factory):
    """Folder, model and tokenizer after a warm-up of some seconds."""
    folder = tmp_path_factory.mktemp("policies") / "toy"
    make_policy(folder, [environment], seed=0, steps=120)
    return folder, *load_policy(folder)


def test_any_text_comes_back(tokenizer, environment) -> None:
    chance = random.Random(0)
    texts = ["", " ", "héllo\n\tΩ 漢字 🙂", "</ look>", "<|end", "\x00\x7f\x80ÿ"]
    texts += ["".join(chr(chance.choice([*range(32, 127), *range(0x80, 0x2000), 0x1F600])) for _ in range(40))]
    texts += [segment.text for one in islice(environment.demonstrations(3), 20) for segment in one.segments]
    for text in texts:
        ids = text_ids(tokenizer, text)
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert max(ids, default=0) < VOCAB


def test_every_byte_has_a_token(tokenizer) -> None:
    """Also where no text holds it: the policy can write it, and it comes back as a character, whole or replaced."""
    alone = [tokenizer.decode(text_ids(tokenizer, chr(point))) for point in range(256)]
    assert alone == [chr(point) for point in range(256)]


def test_a_tag_is_one_ordinary_token_and_the_vocabulary_is_full(tokenizer) -> None:
    for tag in TAGS:
        (token,) = text_ids(tokenizer, tag)
        assert tokenizer.decode([token], skip_special_tokens=True) == tag
    assert len(tokenizer) == len(tokenizer.get_vocab()) == VOCAB
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB))
    special = [tokenizer.pad_token_id, tokenizer.eos_token_id]
    assert tokenizer.decode(special, skip_special_tokens=True) == ""
    assert special[0] != special[1]


def test_no_merge_spans_a_tag_a_space_or_a_digit(tokenizer) -> None:
    assert text_ids(tokenizer, "<look>Belka</look>")[1:-1] == text_ids(tokenizer, "Belka")
    assert text_ids(tokenizer, " Belka")[1:] == text_ids(tokenizer, "Belka")
    assert len(text_ids(tokenizer, "1234567890")) == 10


def test_few_merges_leave_reserved_tokens_that_say_nothing() -> None:
    poor = TOY.Toy()
    poor.demonstrations = lambda seed: iter([Demonstration("ab", (Segment("ab", True),), True)] * 1_000)
    tokenizer = train_tokenizer([poor], seed=0)
    reserved = [token for token in tokenizer.get_vocab() if token.startswith("<|reserved_")]
    assert len(tokenizer) == VOCAB and len(reserved) > 200
    assert tokenizer.decode(tokenizer.convert_tokens_to_ids(reserved), skip_special_tokens=True) == ""


def test_a_vocabulary_without_room_for_all_bytes_is_refused(environment) -> None:
    with pytest.raises(ConfigError, match="no room for all bytes"):
        train_tokenizer([environment], seed=0, vocab=256)


def test_a_prompt_costs_two_tokens_more_than_its_text(tokenizer) -> None:
    ids = prompt_ids(tokenizer, "Who leads Belka?")
    assert ids[1:-1] == text_ids(tokenizer, "Who leads Belka?")
    message = [{"role": "user", "content": "Who leads Belka?"}]
    assert tokenizer.apply_chat_template(message, add_generation_prompt=True)["input_ids"] == ids


def test_a_demonstration_is_encoded_piece_by_piece_as_a_rollout_is(tokenizer) -> None:
    # Encoded as one text, `is` would be one token and `7` would not stand beside the tool's words.
    pieces = (Segment("i", True), Segment("s", False), Segment("7", True))
    encoded = encode(tokenizer, Demonstration("Who?", pieces, True), stop=("</look>",))
    prompt = prompt_ids(tokenizer, "Who?")
    written, returned, last = (text_ids(tokenizer, text)[0] for text in ("i", "s", "7"))
    end = tokenizer.eos_token_id
    assert encoded.ids == [*prompt, written, end, returned, last, end]
    assert encoded.by_policy == [False] * len(prompt) + [True, True, False, True, True]
    closed = encode(tokenizer, Demonstration("Who?", (Segment("7</look>", True),), True), stop=("</look>",))
    assert tokenizer.convert_ids_to_tokens(closed.ids[-1]) == "</look>"


def test_labels_are_the_policys_tokens_and_nothing_else(tokenizer, environment) -> None:
    ids, labels = next(batches(tokenizer, [environment], 0, WarmupOptions(steps=1, batch=4)))
    look, info = (tokenizer.convert_tokens_to_ids(tag) for tag in ("<look>", "<info>"))
    assert (labels[ids == look] == look).all()
    assert (labels[ids == info] == IGNORED).all()
    assert (labels[ids == tokenizer.pad_token_id] == IGNORED).all()
    assert (labels[labels != IGNORED] == ids[labels != IGNORED]).all()


def test_demonstrations_that_fit_nowhere_are_an_error(tokenizer, environment) -> None:
    with pytest.raises(ConfigError, match="no demonstration is as short as 4 tokens"):
        next(batches(tokenizer, [environment], 0, WarmupOptions(steps=1, max_tok=4)))


def test_the_rate_rises_falls_and_ends_near_zero() -> None:
    options = WarmupOptions(steps=100, rate=1.0, rise=0.1)
    assert [rate_at(step, options) for step in (0, 9, 10, 55)] == pytest.approx([0.1, 1.0, 1.0, 0.5])
    assert 0 < rate_at(99, options) < 0.001


def test_an_untrained_model_continues_a_repetition(tokenizer) -> None:
    """The built-in induction heads: in the second half of a repeated random text each token is foretold."""
    model = new_model(tokenizer, seed=0)
    ids = torch.stack(
        [torch.randperm(VOCAB, generator=torch.Generator().manual_seed(seed))[:100].repeat(2) for seed in range(4)]
    )
    with torch.inference_mode():
        foretold = model(ids).logits.argmax(-1)
    hits = (foretold[:, :-1] == ids[:, 1:]).float()
    assert hits[:, 100:].mean() > 0.8
    assert hits[:, :99].mean() < 0.05


def test_the_simulator_knows_the_models_shape(tokenizer) -> None:
    card, config = load_model("tiny"), new_model(tokenizer, seed=0).config
    assert (card.num_layers, card.hidden, card.num_heads) == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
    )
    assert (card.num_kv_heads, card.head_dim) == (config.num_key_value_heads, config.head_dim)
    assert (card.ffn, card.vocab, card.max_context_tok) == (FFN, VOCAB, MAX_CONTEXT_TOK)
    assert (card.hidden, card.tied_embeddings) == (HIDDEN, config.tie_word_embeddings)


def test_two_ranks_divide_the_model(tokenizer) -> None:
    config = new_model(tokenizer, seed=0).config
    for count in (config.num_attention_heads, config.num_key_value_heads, config.intermediate_size, config.vocab_size):
        assert count % 2 == 0


def test_weights_are_a_function_of_the_seed(environment, tmp_path) -> None:
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(folder) + seed * 7)  # whatever the caller drew before
        torch.rand(seed + 3)
        make_policy(tmp_path / folder, [environment], seed=seed, steps=3)
    first, second, other = (
        {file: (tmp_path / folder / file).read_bytes() for file in ("model.safetensors", "tokenizer.json")}
        for folder in "abc"
    )
    assert first == second
    assert first["model.safetensors"] != other["model.safetensors"]


def test_the_warm_up_teaches_the_task(policy, environment) -> None:
    _, model, tokenizer = policy
    tasks = list(environment.tasks("held_out"))[:64]
    before = success(roll_out(new_model(tokenizer, seed=0), tokenizer, environment, tasks, seed=1))
    after = success(roll_out(model, tokenizer, environment, tasks, seed=1))
    assert before == 0.0
    assert 0.2 < after < 0.9  # half of the demonstrations ask for another town
    assert success(roll_out(model, tokenizer, environment, tasks, seed=1, temperature=0.0)) > 0.8


def test_reserved_tokens_are_never_written_after_the_warm_up(policy) -> None:
    """They cannot be masked in the weights; training pushes them down like every token that no turn holds."""
    _, model, tokenizer = policy
    unused = [tokenizer.pad_token_id, *tokenizer.convert_tokens_to_ids(["<|user|>", "<|assistant|>"])]
    with torch.inference_mode():
        chances = model(torch.tensor([prompt_ids(tokenizer, "Who leads Belka?")])).logits[0, -1].softmax(-1)
    assert chances[unused].sum() < 1e-3


def test_rollouts_are_what_the_episode_saw(policy, environment) -> None:
    _, model, tokenizer = policy
    tasks = list(environment.tasks("held_out"))[:8]
    for rollout in roll_out(model, tokenizer, environment, tasks, seed=2):
        prompt = len(prompt_ids(tokenizer, rollout.task.prompt))
        assert not any(rollout.by_policy[:prompt])
        assert tokenizer.decode(rollout.ids[prompt:], skip_special_tokens=True) == "".join(rollout.texts)
        assert rollout.num_turns <= environment.max_turns
        assert sum(rollout.by_policy) <= environment.max_turns * environment.max_turn_tok


def test_batched_sampling_is_greedy_decoding_of_each_alone(policy, environment) -> None:
    """Left padding, the cache and the removal of finished rows change nothing."""
    _, model, tokenizer = policy
    contexts = [prompt_ids(tokenizer, text) for text in ("Who?", "Who leads Belka?", "Who leads Osvorminoka now?")]
    contexts.append([*contexts[1], *text_ids(tokenizer, "<look>Belka")])
    stop = frozenset(tokenizer.convert_tokens_to_ids(list(environment.stop)))
    turns = sample_turns(model, contexts, stop, 12, 0.0, torch.Generator())
    for context, turn in zip(contexts, turns, strict=True):
        ids = list(context)
        with torch.inference_mode():
            for token in turn:
                assert token == model(torch.tensor([ids])).logits[0, -1].argmax()
                ids.append(token)
        assert turn[-1] in stop or len(turn) == 12
        assert not stop & set(turn[:-1])


def test_a_policy_is_made_once(environment, tmp_path) -> None:
    lines: list[str] = []
    first = make_policy(tmp_path / "p", [environment], seed=0, steps=2, progress=lines.append)
    assert any("warm-up step 2/2" in line for line in lines)
    before = (tmp_path / "p" / "model.safetensors").stat().st_mtime_ns
    lines.clear()
    assert make_policy(tmp_path / "p", [environment], seed=0, steps=2, progress=lines.append) == first
    assert lines == [f"policy {first.fingerprint} is there already: {tmp_path / 'p'}"]
    assert (tmp_path / "p" / "model.safetensors").stat().st_mtime_ns == before
    assert [file.name for file in tmp_path.iterdir()] == ["p"]


def test_a_folder_with_something_else_is_left_alone(environment, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something that is no tiny policy"):
        make_policy(tmp_path, [environment], seed=0, steps=2)
    make_policy(tmp_path / "p", [environment], seed=0, steps=2)
    with pytest.raises(ConfigError, match=r"of other inputs \(environments toy, seed 0, 2 steps"):
        make_policy(tmp_path / "p", [environment], seed=0, steps=3)
    (tmp_path / "p" / "policy.json").write_text("{")
    with pytest.raises(ConfigError, match=r"policy\.json: cannot be read"):
        make_policy(tmp_path / "p", [environment], seed=0, steps=2)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_senseless_requests_are_refused(environment, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"at least one step \(got 0\)"):
        make_policy(tmp_path / "p", [environment], seed=0, steps=0)
    with pytest.raises(ConfigError, match="needs an environment"):
        make_policy(tmp_path / "p", [], seed=0, steps=1)
    with pytest.raises(ConfigError, match="no tiny policy in this folder"):
        load_policy(tmp_path)


def test_the_fingerprint_follows_what_is_learned() -> None:
    base = fingerprint([TOY.Toy(0.5)], 0, WarmupOptions(steps=2))
    assert base == fingerprint([TOY.Toy(0.5)], 0, WarmupOptions(steps=2))
    others = (
        fingerprint([TOY.Toy(0.4)], 0, WarmupOptions(steps=2)),
        fingerprint([TOY.Toy(0.5)], 1, WarmupOptions(steps=2)),
        fingerprint([TOY.Toy(0.5)], 0, WarmupOptions(steps=3)),
    )
    assert len({base, *others}) == 4


def test_the_callers_threads_and_chance_are_given_back(tokenizer, environment) -> None:
    torch.set_num_threads(2)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    warm_up(new_model(tokenizer, seed=0), tokenizer, [environment], 0, WarmupOptions(steps=1, batch=2))
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_num_threads(1)
