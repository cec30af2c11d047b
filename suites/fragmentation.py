"""How much of the memory that a cache takes holds K/V while a request trace is served.

Every step's slots are sorted into four kinds, after Kwon et al. (SOSP 2023, figure 2), and averaged over the steps:

- held: a token's K/V. Their share is the effective utilisation.
- reserved: taken ahead, in blocks that hold no token yet, and filled before their sequence finishes.
- internal fragmentation: the rest of the block that holds a sequence's last token, and what its sequence never fills.
- external fragmentation: free, as many as the first waiting request asks for, and yet refused to it.

The shares of these four add up to 1. Slots that are simply free, with no request that they would be enough for, are in
none of them. Prefix sharing is off, and no two
prompts begin alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from kvbench.interface import CacheManager, ManagerCapabilities, PoolSpec
from kvbench.reference.contiguous import buddy, oracle, reserve_max
from kvbench.suites.rows import Progress, Row, unwatched
from kvbench.suites.serving import SlotPool, Usage, serve
from kvbench.workloads import Trace

BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
TOKEN_IDS = 1 << 31


@dataclass(frozen=True)
class Serving:
    """How the trace is served.

    pool_tokens: slots of the pool (131,072: the K/V of Llama 3.1 8B in 16 GiB of bf16).
    max_sequences: that run at a time.
    max_length: longest sequence that may be asked for, which is what reserve-max reserves; None: the power of two that
        holds the longest one of the trace.
    step_seconds: how long a step takes, for arrivals by their timestamps; None: the queue is full from the start.
    """

    pool_tokens: int = 131_072
    max_sequences: int = 256
    max_length: int | None = None
    step_seconds: float | None = None

    def length_for(self, trace: Trace) -> int:
        """`max_length`, or what stands for it with this trace."""
        return self.max_length if self.max_length is not None else 1 << (trace.longest - 1).bit_length()


@dataclass
class ManagedPool:
    """A `SlotPool` made of a cache manager.

    unit: the block size, or 1 for a manager that reserves ahead: there, blocks are only a way of counting slots.
    """

    manager: CacheManager
    block_size: int
    unit: int
    prompts: int = field(default=0, init=False)

    @property
    def slots(self) -> int:
        """Slots that sequences can use."""
        return self.manager.usable_blocks * self.block_size

    @property
    def growth(self) -> int:
        """A block at a time."""
        return self.block_size

    def free_slots(self) -> int:
        """Slots of the free blocks."""
        return self.manager.free_blocks * self.block_size

    def wanted(self, tokens: int, final: int) -> int:
        """Slots of the blocks that hold `tokens` tokens; a manager that reserves ahead may want more."""
        return -(-tokens // self.block_size) * self.block_size

    def admit(self, seq: str, tokens: int, final: int) -> None:
        """Begin a prompt that shares nothing, all of it computed in this step."""
        self.manager.begin(seq, self._begun(tokens))
        self.manager.commit(seq, tokens)

    def grow(self, seq: str, tokens: int, added: int) -> None:
        """Extend; what came before is computed."""
        self.manager.commit(seq, tokens)
        self.manager.extend(seq, [0] * added)
        self.manager.take_copies()

    def release(self, seq: str) -> None:
        """Free the sequence."""
        self.manager.free(seq)

    def _begun(self, count: int) -> list[int]:
        """A prompt that begins as no other does. One token tells them apart, so that lists of millions stay cheap."""
        self.prompts += 1
        return [self.prompts % TOKEN_IDS, *[0] * (count - 1)]


def measure_fragmentation(
    new_manager: Callable[[PoolSpec], CacheManager],
    declared: ManagerCapabilities,
    trace: Trace,
    serving: Serving = Serving(),
    progress: Progress = unwatched,
) -> Iterator[Row]:
    """Rows of a manager: for each block size of `BLOCK_SIZES` that it supports, or for one if it reserves ahead."""
    sizes = declared.block_sizes.among(BLOCK_SIZES if declared.paged else (16,))
    for done, block_size in enumerate(sizes):
        spec = PoolSpec(
            num_blocks=max(serving.pool_tokens // block_size, 1),
            block_size=block_size,
            prefix_caching=False,
            max_sequences=serving.max_sequences,
            max_length=serving.length_for(trace),
        )
        pool = ManagedPool(new_manager(spec), block_size, block_size if declared.paged else 1)
        yield from _rows(pool, trace, serving, {"block_size": block_size}, _Part(progress, done, len(sizes)))


def contiguous_policies(trace: Trace, serving: Serving) -> dict[str, SlotPool]:
    """Fresh pools of the contiguous baselines, by the name of their policy."""
    slots = serving.pool_tokens
    return {
        "reserve-max": reserve_max(slots, serving.length_for(trace)),
        "buddy": buddy(slots),
        "oracle": oracle(slots),
    }


def measure_policies(
    policies: Mapping[str, SlotPool], trace: Trace, serving: Serving = Serving(), progress: Progress = unwatched
) -> Iterator[Row]:
    """Rows of allocation policies by name: contiguous baselines, or any other way of handing out slots."""
    for done, (policy, pool) in enumerate(policies.items()):
        yield from _rows(pool, trace, serving, {"policy": policy}, _Part(progress, done, len(policies)))


@dataclass(frozen=True)
class _Part:
    """One of several measurements, each of as many parts as the trace has requests."""

    progress: Progress
    done: int
    parts: int

    def tell(self, text: str, settled: int, requests: int) -> None:
        self.progress(text, self.done * requests + settled, self.parts * requests)


def _rows(pool: SlotPool, trace: Trace, serving: Serving, what: Mapping[str, object], part: _Part) -> Iterator[Row]:
    text = f"{trace.name}, " + ", ".join(f"{name} {value}" for name, value in what.items())
    total = len(trace.requests)
    max_length = serving.length_for(trace)
    allowed = [request for request in trace.requests if request.final_tokens <= max_length]
    usage = serve(
        pool,
        allowed,
        serving.max_sequences,
        serving.step_seconds,
        lambda settled: part.tell(text, settled, total),
    )
    params = {
        **what,
        "pool_tokens": pool.slots,
        "requests": total,
        "max_sequences": serving.max_sequences,
        "max_length": max_length,
        "arrivals": "saturated" if serving.step_seconds is None else f"{serving.step_seconds} s a step",
    }
    for metric, value, unit in _metrics(usage):
        yield Row(metric, value, unit, params)
    yield Row("refused_requests", usage.refused + total - len(allowed), "requests", params)


def _metrics(usage: Usage) -> Iterator[tuple[str, float, str]]:
    """Names, values and units. Where nothing could be admitted there are only counts."""
    occupied = usage.taken + usage.fragmented
    if occupied:
        internal = usage.taken - usage.held - usage.reserved
        yield "effective_utilisation", usage.held / occupied, "ratio"
        yield "internal_fragmentation", internal / occupied, "ratio"
        yield "reserved", usage.reserved / occupied, "ratio"
        yield "external_fragmentation", usage.fragmented / occupied, "ratio"
        yield "running_sequences", usage.running / usage.steps, "sequences"
    yield "preemptions", usage.preemptions, "events"
    yield "recomputed_tokens", usage.recomputed, "tokens"
