"""Batches for the tests of engines' kernels, and what attention over them should give."""

import itertools

import torch

from kvbench.interface import HOLE, NO_SLOT, AttentionOptions, Batch
from kvbench.reference.attention import attend_dense, first_visible

PLAIN = AttentionOptions()
PREFILLS = ((0, 5), (0, 40), (0, 33), (0, 32))
DECODES = ((1, 1), (31, 1), (32, 1), (70, 1))
MIXED = ((0, 17), (9, 1), (40, 0), (0, 0), (33, 30))
"""(context, new) of each row: prefills, decodes, and both with a chunk, an idle row and an empty one."""


class Sequences:
    """K/V of some sequences in a kernel's cache, blocks in descending order, filled through `forward`."""

    def __init__(self, kernel, spec, rows, seed=0):
        self.kernel, self.spec, self.rows = kernel, spec, rows
        self.generator = torch.Generator().manual_seed(seed)
        counts = [-(-sum(row) // spec.block_size) for row in rows]
        ids = iter(range(sum(counts) + 1, -1, -1))
        self.tables = [[next(ids) for _ in range(count)] for count in counts]
        self.cache = kernel.create(spec, sum(counts) + 2)
        self.k = [self.randn(sum(row), spec.num_kv_heads, spec.head_dim) for row in rows]
        self.v = [self.randn(sum(row), spec.num_kv_heads, spec.value_dim) for row in rows]
        contexts = [(0, context) for context, _ in rows]
        kernel.forward(self.cache, self.batch(contexts))

    def randn(self, *shape):
        return torch.randn(*shape, generator=self.generator).to(getattr(torch, self.spec.precision.compute))

    def batch(self, spans, options=PLAIN, holes=False):
        """New tokens context .. context + new of each row. holes: where a window has left blocks behind."""
        bs = self.spec.block_size
        width = max(map(len, self.tables))
        tables = [[*table, *[HOLE] * (width - len(table))] for table in self.tables]
        if holes:
            for table, (context, new) in zip(tables, spans, strict=True):
                gone = first_visible(context + new, new, options) // bs
                table[:gone] = [HOLE] * gone
        pieces = [slice(context, context + new) for context, new in spans]
        slots = [
            table[p // bs] * bs + p % bs
            for table, (context, new) in zip(tables, spans, strict=True)
            for p in range(context, context + new)
        ]
        return Batch(
            q=self.randn(sum(new for _, new in spans), self.spec.num_q_heads, self.spec.head_dim),
            k=torch.cat([k[piece] for k, piece in zip(self.k, pieces, strict=True)]),
            v=torch.cat([v[piece] for v, piece in zip(self.v, pieces, strict=True)]),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            seq_lens=torch.tensor([sum(span) for span in spans], dtype=torch.int32),
            query_start_loc=torch.tensor([0, *itertools.accumulate(new for _, new in spans)], dtype=torch.int32),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            options=options,
        )

    def expected(self, batch, stored=lambda rows: rows.double()):
        """Attention in float64 over what the cache gives back of the K/V."""
        lengths = batch.seq_lens.tolist()
        keys = [stored(k)[:n] for k, n in zip(self.k, lengths, strict=True)]
        values = [stored(v)[:n] for v, n in zip(self.v, lengths, strict=True)]
        return attend_dense(batch.q, keys, values, batch.query_start_loc, batch.options)


def padded(batch, extra):
    """The batch with tokens of no row at its end."""
    import dataclasses

    def longer(x, value=1):
        return torch.cat([x, torch.full((extra, *x.shape[1:]), value, dtype=x.dtype)])

    return dataclasses.replace(
        batch, q=longer(batch.q), k=longer(batch.k), v=longer(batch.v), slot_mapping=longer(batch.slot_mapping, NO_SLOT)
    )


def assert_close(found, expected, tolerance):
    assert (found.double() - expected).abs().max().item() <= tolerance
