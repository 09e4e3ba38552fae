"""A byte-level BPE learned from the environments' demonstrations.

Published tokenizers have vocabularies many times larger than the whole tiny model. Names stand apart from the space
before them, so that a name has the same tokens in a question, a passage and a tool call: copying it is then one
attention step, the first thing a small model learns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from libra.core.errors import ConfigError

if TYPE_CHECKING:
    from libra.workloads.environments.base import Demonstration, Environment

VOCAB = 512
"""Bytes, tags and about 230 merges. A multiple of 64: vLLM pads to that, and two tensor-parallel ranks halve it."""

NUM_DEMONSTRATIONS = 1_000
"""Per environment: merges no longer change with more."""

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}"
    f"{ASSISTANT}{{{{ m['content'] }}}}{END}"
    f"{{% else %}}{USER}{{{{ m['content'] }}}}{{% endif %}}{{% endfor %}}"
    f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)
"""Two tokens around a prompt: every token of context costs time on one core."""

WORDS = Regex(r" ?\p{Ll}+|\p{Lu}\p{Ll}*|\p{L}+|\p{N}|\s|[^\p{L}\p{N}\s]+")
"""No merge crosses these pieces. Lower-case words keep the space before them (half the tokens of a sentence), names do
not; a digit is a piece of its own, so that numbers are copied digit by digit."""

TAG = re.compile(r"</?[a-z_]+>")


def tags_of(environment: Environment, demonstrations: Iterable[Demonstration]) -> set[str]:
    """Stop tags, their openers, and the tags that enclose what tools return."""
    found = set(environment.stop) | {tag.replace("</", "<") for tag in environment.stop}
    for demonstration in demonstrations:
        for segment in demonstration.segments:
            tags = TAG.findall(segment.text)
            if not segment.by_policy and tags:
                found |= {tags[0], tags[-1]}
    return found


def texts_of(demonstrations: Iterable[Demonstration], tags: Sequence[str]) -> Iterator[str]:
    """All text between tags: merges inside a tag would be lost, as a tag is one token anyway."""
    cut = re.compile("|".join(re.escape(tag) for tag in tags) or r"(?!)")
    for demonstration in demonstrations:
        for text in (demonstration.prompt, *(segment.text for segment in demonstration.segments)):
            yield from (piece for piece in cut.split(text) if piece)


def train_tokenizer(environments: Sequence[Environment], seed: int, vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """Same environments and seed, same tokenizer. `len(tokenizer) == vocab`.

    Ids: bytes and merges, then the four special tokens, the tags, and reserved tokens where the text has too few pairs
    to merge. Reserved tokens decode to nothing; the warm-up teaches the model never to write them.
    """
    demonstrations = []
    tags: set[str] = set()
    for environment in environments:
        stream = environment.demonstrations(seed)
        own = [next(stream) for _ in range(NUM_DEMONSTRATIONS)]
        tags |= tags_of(environment, own)
        demonstrations += own
    special, ordinary = [PAD, END, USER, ASSISTANT], sorted(tags)
    room = vocab - len(special) - len(ordinary)
    if room < len(pre_tokenizers.ByteLevel.alphabet()):
        raise ConfigError("no room for all bytes and tags", where="vocab", value=vocab, mend="use at least 320")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(WORDS, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    core.train_from_iterator(texts_of(demonstrations, ordinary), trainer)
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    core.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in ordinary])
    reserved = [f"<|reserved_{i}|>" for i in range(vocab - core.get_vocab_size())]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in reserved])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.padding_side = "left"
    return tokenizer


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """What `save_pretrained` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def prompt_ids(tokenizer: PreTrainedTokenizerFast, prompt: str) -> list[int]:
    """A task's prompt as the first turn of a chat, ready to be answered."""
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    return text_ids(tokenizer, text)


def text_ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """A tool's return as it is appended to a context."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]
