"""Conversations in ShareGPT's JSON: every answer is a request, and its prompt is the conversation before it.

Such files hold text, no token counts and no times. Tokens are counted by a rule of thumb, one for every 4 characters,
rounded up; all requests arrive at 0, in file order. Content identity is exact: the text itself, hashed block by block.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvbench.workloads.fields import MAX_HASH_ID, MAX_TOKENS, Place, shown
from kvbench.workloads.trace import Request

SOURCE = "ShareGPT conversations"
HASH_BLOCK = 16
CHARACTERS_A_TOKEN = 4
COUNTING_RULE = "tokens counted as one for every 4 characters, rounded up; the file has no times, so all arrive at 0"

ANSWERING = frozenset({"gpt", "assistant", "chatgpt", "model", "bing", "bard"})
EXPECTED = 'expected {"conversations": [{"from": ..., "value": ...}, ...]}'


def looks_like_conversation(entry: Any) -> bool:
    """Whether a JSON value is one conversation of such a file."""
    return isinstance(entry, dict) and isinstance(entry.get("conversations"), list)


def read_conversations(text: str, path: Path) -> Iterator[Request]:
    """The requests of a JSON array, or of JSON objects one after the other. Raises `InputError` naming the line."""
    for number, (entry, place) in enumerate(_entries(text, path)):
        if not looks_like_conversation(entry):
            raise place.error(f"{shown(entry)} is not a conversation; {EXPECTED}")
        yield from _requests(_turns(entry["conversations"], place), f"{entry.get('id', number)!s:.80}", place)


def _entries(text: str, path: Path) -> Iterator[tuple[Any, Place]]:
    """The objects of the file, one at a time, so that only one is held apart from the text."""
    decoder = json.JSONDecoder()
    position = _skip(text, 0, " \t\r\n[")
    line, counted = 1, 0
    while position < len(text) and text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        try:
            entry, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise Place(path, error.lineno).error(f"not valid JSON ({error.msg.lower()}); {EXPECTED}") from None
        except (ValueError, RecursionError):
            raise Place(path, line).error(f"JSON that cannot be read; {EXPECTED}") from None
        yield entry, Place(path, line)
        position = _skip(text, position, " \t\r\n,")
    if text.lstrip().startswith("[") and not text.rstrip().endswith("]"):
        raise Place(path, text.count("\n") + 1).error("the JSON array does not end; is the file complete?")


def _turns(conversation: list[Any], place: Place) -> Iterator[tuple[str, str]]:
    """Speaker and text of each turn."""
    for turn in conversation:
        if not isinstance(turn, dict):
            raise place.error(f"{shown(turn)} is not a turn of a conversation; {EXPECTED}")
        speaker, said = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        if not isinstance(speaker, str) or not isinstance(said, str):
            raise place.error(f"a turn without speaker or text; {EXPECTED}")
        yield speaker, said


def _requests(turns: Iterator[tuple[str, str]], session: str, place: Place) -> Iterator[Request]:
    """A request for each answer that follows a prompt."""
    text = ""
    ids: list[int] = []
    chain = hashlib.blake2b(digest_size=8)
    for speaker, said in turns:
        if speaker.lower() in ANSWERING and text:
            prompt, output = _tokens(text), _tokens(said)
            if max(prompt, output) > MAX_TOKENS:
                raise place.error(f"a turn of {max(prompt, output)} tokens; expected at most {MAX_TOKENS}")
            _extend(ids, chain, text)
            yield Request(0.0, prompt, output, tuple(ids), session)
        text += f"{speaker}: {said}\n"


def _extend(ids: list[int], chain: Any, text: str) -> None:
    """Add the ids of the blocks of `text` that have become full; each is the hash of all text up to its end."""
    width = HASH_BLOCK * CHARACTERS_A_TOKEN
    for block in range(len(ids), len(text) // width):
        chain.update(text[block * width : (block + 1) * width].encode("utf-8", "surrogatepass"))
        ids.append(int.from_bytes(chain.digest(), "big") & MAX_HASH_ID)


def _tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_A_TOKEN)


def _skip(text: str, position: int, characters: str) -> int:
    while position < len(text) and text[position] in characters:
        position += 1
    return position
