"""Corpora of the search tool: JSON lines with `id` and `text`, one passage a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from libra.core.errors import ConfigError


class Passage(msgspec.Struct, frozen=True):
    """`text` is all that is indexed and returned, a title included."""

    id: str
    text: str


def read_corpus(path: Path) -> list[Passage]:
    """Raises `ConfigError` for a file that is missing, empty or malformed, with the line."""
    decoder = msgspec.json.Decoder(Passage)
    passages: list[Passage] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    passages.append(_passage(decoder, line, f"{path}:{number}"))
    except OSError as error:
        raise ConfigError(
            f"the corpus cannot be read: {error.strerror}", where=str(path), mend="name a file of JSON lines"
        ) from error
    if not passages:
        raise ConfigError(
            "the corpus is empty", where=str(path), mend='write {"id": ..., "text": ...} lines, or prepare it again'
        )
    return passages


def write_corpus(path: Path, passages: Iterable[Passage]) -> None:
    """What `read_corpus` reads."""
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        file.writelines(encoder.encode(passage) + b"\n" for passage in passages)


def _passage(decoder: msgspec.json.Decoder[Passage], line: bytes, where: str) -> Passage:
    try:
        return decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"no passage: {error}", where=where, mend='each line is {"id": "...", "text": "..."}'
        ) from error
