"""What a trace offers to prefix caching: the hits of a cache that forgets nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvbench.errors import UsageError
from kvbench.workloads.trace import Request, Trace


@dataclass(frozen=True)
class Reuse:
    """Totals over a trace.

    prompt_tokens: of all requests. hit_tokens: those whose K/V an infinite cache already holds when they arrive.
    distinct_tokens: slots that hold the K/V of every prompt and output once, blocks of equal content together.
    """

    prompt_tokens: int
    hit_tokens: int
    distinct_tokens: int

    @property
    def ratio(self) -> float:
        """Ideal token hit ratio, 0..1."""
        return self.hit_tokens / self.prompt_tokens


def ideal_reuse(trace: Trace) -> Reuse:
    """Exact reuse by content identity, with an infinite cache and each request finished before the next begins.

    A prompt always has at least one token left to compute. Outputs are stored but hit only as far as the ids of later
    prompts say so, which is how published traces identify them. Raises `UsageError` for a trace without identity.
    """
    hash_block = hash_block_of(trace)
    children: dict[tuple[int, int], int] = {}  # (node of the prefix, id) -> node of the longer prefix; 0 is the root
    hits = slots = 0
    for request in trace.requests:
        cached, fresh = _insert(children, request.hash_ids or ())
        hits += min(cached * hash_block, request.prompt_tokens - 1)
        slots += fresh * hash_block + _tail_slots(request, hash_block)
    return Reuse(trace.prompt_tokens, hits, slots)


def hash_block_of(trace: Trace) -> int:
    """Tokens a block of the trace's content identity. Raises `UsageError` where it has none."""
    if trace.hash_block is None:
        raise UsageError(
            f"trace {trace.name} says nothing about equal content, so prefix reuse cannot be measured on it; "
            "use mooncake-conv, or a file with hash_ids (Mooncake, Qwen-Bailian) or text (ShareGPT)"
        )
    return trace.hash_block


def coarsened(trace: Trace, factor: int) -> Trace:
    """The same trace with `factor` of its blocks taken as one, which loses hits that end inside such a block.

    Needs ids that identify the whole prefix up to the end of their block, as those of the public traces do.
    """
    hash_block = hash_block_of(trace) * factor
    requests = tuple(replace(request, hash_ids=_last_of_each(request, factor)) for request in trace.requests)
    note = f"content identity taken at {hash_block} tokens instead of {trace.hash_block}"
    return replace(trace, requests=requests, hash_block=hash_block, notes=(*trace.notes, note))


def _last_of_each(request: Request, factor: int) -> tuple[int, ...] | None:
    """The id at the end of each group of `factor` blocks; the last group may be shorter."""
    ids = request.hash_ids
    if not ids:
        return ids
    full = ids[factor - 1 :: factor]
    return full if len(ids) % factor == 0 else (*full, ids[-1])


def _insert(children: dict[tuple[int, int], int], ids: tuple[int, ...]) -> tuple[int, int]:
    """Put a prompt into the tree of prefixes; return how many of its blocks were there and how many were not."""
    node = cached = 0
    for hash_id in ids:
        child = children.get((node, hash_id))
        if child is None:
            child = children[node, hash_id] = len(children) + 1
        else:
            cached += 1
        node = child
    return cached, len(ids) - cached


def _tail_slots(request: Request, hash_block: int) -> int:
    """Slots, in whole blocks, of what comes after the prompt's identified blocks: unidentified prompt and output."""
    identified = len(request.hash_ids or ()) * hash_block
    return -(-max(request.final_tokens - identified, 0) // hash_block) * hash_block
