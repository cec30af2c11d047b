"""Latent attention: two ways to compute the same thing, and one of them without attention's code."""

import math

import torch

from kvbench.interface import AttentionOptions
from kvbench.reference.latent import attend_latent, attend_latent_expanded

RANK, ROPE, NOPE, VALUE, HEADS = 12, 4, 8, 6, 3


def case():
    generator = torch.Generator().manual_seed(5)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows = [randn(7, RANK + ROPE), randn(3, RANK + ROPE), randn(0, RANK + ROPE)]
    return randn(5, HEADS, NOPE), randn(5, HEADS, ROPE), rows, randn(HEADS, NOPE, RANK), randn(HEADS, VALUE, RANK)


def test_absorbed_form_equals_expanded_form():
    for options in (AttentionOptions(), AttentionOptions(window=2, sinks=(0.0, 1.0, 2.0)), AttentionOptions(scale=0.3)):
        absorbed = attend_latent(*case(), [0, 2, 5, 5], options)
        expanded = attend_latent_expanded(*case(), [0, 2, 5, 5], options)
        torch.testing.assert_close(absorbed.out, expanded.out, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(absorbed.lse, expanded.lse, rtol=1e-11, atol=1e-11)


def test_equals_a_softmax_written_out_for_one_head():
    q_nope, q_rope, rows, w_uk, w_uv = case()
    token, head, cached = 1, 2, rows[0]  # the last token of the first row sees all of it
    scores = []
    for row in cached:
        k = torch.cat([w_uk[head] @ row[:RANK], row[RANK:]])
        scores.append(float(torch.cat([q_nope[token, head], q_rope[token, head]]) @ k) / math.sqrt(NOPE + ROPE))
    total = sum(math.exp(s) for s in scores)
    out = sum(math.exp(s) / total * (w_uv[head] @ row[:RANK]) for s, row in zip(scores, cached, strict=True))
    found = attend_latent(*case(), [0, 2, 5, 5])
    torch.testing.assert_close(found.out[token, head], out)
    assert math.isclose(found.lse[token, head], math.log(total), rel_tol=1e-12)
