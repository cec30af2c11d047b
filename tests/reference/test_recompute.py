"""What a cache saves, and that it changes nothing."""

import pytest
import torch

from kvbench.reference.recompute import (
    generate_with_cache,
    generate_without_cache,
    make_decoder,
    operations_with_cache,
    operations_without_cache,
)


@pytest.mark.parametrize(("prompt", "steps"), [([3], 1), ([1, 2, 3, 4, 5], 6), ([9, 9], 12), ([7], 0)])
def test_a_cache_changes_the_work_and_not_the_outcome(prompt, steps):
    model = make_decoder(seed=1)
    with_cache, without = generate_with_cache(model, prompt, steps), generate_without_cache(model, prompt, steps)
    assert len(without.tokens) == steps
    assert with_cache.tokens == without.tokens
    torch.testing.assert_close(with_cache.outputs, without.outputs, rtol=1e-10, atol=1e-10)
    assert with_cache.operations == operations_with_cache(len(prompt), steps)
    assert without.operations == operations_without_cache(len(prompt), steps)


def test_outputs_depend_on_every_token_of_the_prompt():
    model = make_decoder(seed=1)
    first, second = (generate_with_cache(model, [t, 2, 3], 1).outputs for t in (0, 1))
    assert (first - second).abs().max() > 1e-3


def test_projections_grow_with_the_square_of_the_steps_without_a_cache_and_linearly_with_one():
    assert operations_without_cache(1, 2000).projections == pytest.approx(
        4 * operations_without_cache(1, 1000).projections, rel=1e-2
    )
    assert operations_with_cache(1, 2000).projections == 2 * operations_with_cache(1, 1000).projections
    assert operations_without_cache(100, 10).projections == sum(range(100, 110))
