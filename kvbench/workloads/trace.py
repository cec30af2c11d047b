"""Request traces: what arrives when, how long it is, and which parts of the prompts have equal content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    arrival: seconds since the first request of the trace.
    prompt_tokens: at least 1. output_tokens: tokens generated, 0 where only the prompt is processed.
    hash_ids: content identity of the prompt, one id a block of the trace's `hash_block` tokens (the last one may be
        partly filled). Requests whose ids agree up to block i have equal prompts up to the end of that block. The
        list may stop before the prompt ends: what follows is shared with nobody. None: nothing is known.
    session: names the conversation that the request belongs to, where the trace tells.
    """

    arrival: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None
    session: str | None = None

    @property
    def final_tokens(self) -> int:
        """Length of the sequence when it finishes: prompt and output."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival, the first at 0 seconds.

    name: how reports call it. source: where it comes from, with its licence where that is known.
    hash_block: tokens that one entry of `Request.hash_ids` stands for; None when the trace has no content identity.
    notes: what a reader should know about how the trace was read (sorted, requests left out, counting rules).
    """

    name: str
    source: str
    requests: tuple[Request, ...]
    hash_block: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def longest(self) -> int:
        """Final length of the longest sequence, in tokens."""
        return max(request.final_tokens for request in self.requests)

    def first(self, count: int | None) -> Trace:
        """The trace cut after `count` requests (None: all of them)."""
        if count is None or count >= len(self.requests):
            return self
        return replace(self, requests=self.requests[:count])


def in_arrival_order(requests: Iterable[Request]) -> tuple[tuple[Request, ...], bool]:
    """The requests sorted by arrival and shifted so that the first arrives at 0; whether sorting changed the order.

    Requests that arrive together keep their order.
    """
    given = list(requests)
    ordered = sorted(given, key=lambda request: request.arrival)
    moved = any(a is not b for a, b in zip(given, ordered, strict=True))
    start = ordered[0].arrival if ordered else 0.0
    if start != 0.0:
        ordered = [Request(r.arrival - start, r.prompt_tokens, r.output_tokens, r.hash_ids, r.session) for r in ordered]
    return tuple(ordered), moved
