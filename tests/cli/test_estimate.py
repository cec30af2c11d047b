"""`kvbench estimate`."""

import io
import json
import re

import pytest
from rich.console import Console

from kvbench.cli.estimate import estimate, parse_size
from kvbench.cli.estimate_table import render
from kvbench.cli.main import main
from kvbench.errors import UsageError

GIB = 1024**3


def shown(*args, **options) -> str:
    """What people see, with runs of spaces as one."""
    text = io.StringIO()
    render(estimate(*args, **options), Console(file=text, width=200))
    return re.sub(" +", " ", text.getvalue())


def test_a_long_llama_sequence_takes_more_than_the_weights():
    made = estimate("llama-3.1-8b", context=131_072)
    assert made.bytes_per_token == 131_072
    assert made.bytes_per_sequence == made.paged_bytes_per_sequence == 16 * GIB
    assert made.weight_bytes == 16_060_522_496
    text = shown("llama-3.1-8b", context=131_072)
    assert "KV cache per token 131,072 bytes" in text
    assert "per sequence 16 GiB 131,072 tokens" in text
    assert "weights 15 GiB 16.06 GB" in text
    assert "the cache is 1.07 times the weights" in text


def test_memory_left_by_the_weights_is_shared_out_in_whole_sequences():
    made = estimate("llama-3.1-8b", context=4096, gpu_memory="80GB", batch=200)
    assert made.fit is not None
    assert made.fit.free_bytes == 80 * 10**9 - 16_060_522_496
    assert made.fit.paged == 119  # half a GiB each
    assert made.fit.reserved == 3  # 16 GiB each
    text = shown("llama-3.1-8b", context=4096, gpu_memory="80GB", batch=200)
    assert "119 sequences of 4,096 tokens fit in blocks of 16; 200 were asked for" in text


def test_reserving_counts_every_layer_in_full_where_blocks_let_go_behind_the_window():
    made = estimate("gemma-3-27b", context=131_072, gpu_memory="1TiB")
    assert made.fit is not None
    room = 1024 * GIB - 2 * 27_009_346_304
    assert made.fit.reserved == room // (2 * 16 * 128 * 2 * 62 * 131_072)
    assert made.fit.paged > 5 * made.fit.reserved


def test_a_batch_takes_its_sequences_together():
    made = estimate("llama-3.1-8b", context=4096, batch=7)
    assert made.bytes_for_batch == 7 * GIB // 2
    assert made.sequences_per_weights == pytest.approx(16_060_522_496 / (GIB / 2))
    assert "It outgrows the weights at 29.9 such sequences" in shown("llama-3.1-8b", context=4096, batch=7)


def test_memory_smaller_than_the_weights_fits_nothing():
    made = estimate("llama-3.1-70b", gpu_memory="80GB")
    assert made.fit is not None
    assert (made.fit.free_bytes, made.fit.paged, made.fit.reserved) == (0, 0, 0)


def test_ranks_share_weights_and_heads():
    whole, rank = (estimate("llama-3.1-70b", tensor_parallel=ranks) for ranks in (1, 8))
    assert whole.bytes_per_token == 8 * rank.bytes_per_token
    assert whole.weight_bytes == 8 * rank.weight_bytes


def test_the_last_block_of_a_sequence_is_part_empty():
    made = estimate("llama-3.1-8b", context=1025, block_size=256)
    assert made.paged_bytes_per_sequence == 5 * 256 * 131_072
    assert made.rounding_share == pytest.approx(255 / 1280)


def test_growth_ends_with_the_asked_context():
    made = estimate("llama-3.1-8b", context=5000)
    assert [row.context for row in made.growth] == [1024, 4096, 5000]
    assert [row.bytes for row in made.growth] == [131_072 * context for context in (1024, 4096, 5000)]


def test_unknown_weights_are_called_unknown():
    text = shown("glm-5", gpu_memory="141GB")
    assert "weights unknown" in text
    assert "weights unknown, not taken off" in text
    assert "times the weights" not in text


def test_windows_and_state_are_told():
    assert "until the windows are full 49,152 bytes" in shown("gpt-oss-20b")
    assert "state 73.7 MiB a sequence" in shown("qwen3-next")


def test_a_context_beyond_the_models_is_told():
    assert "longest context is 2,048 tokens" in shown("opt-13b", context=4096)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * GIB),
        ("80 gib", 80 * GIB),
        ("80G", 80 * 10**9),
        ("141e9", 141 * 10**9),
        ("1.5TiB", 1536 * GIB),
        ("4096", 4096),
    ],
)
def test_sizes_are_read_with_and_without_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "80XB", "-80GB", "0", "eighty", "80GB!", "1e999"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="size "):
        parse_size(text)


@pytest.mark.parametrize("option", ["context", "batch", "block_size", "tensor_parallel"])
def test_numbers_below_one_are_refused(option):
    with pytest.raises(UsageError, match="must be 1 or more"):
        estimate("llama-3.1-8b", **{option: 0})


def test_json_has_the_figures_alone_on_stdout(capsys):
    assert main(["estimate", "llama-3.1-8b", "--context", "131072", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["bytes_per_token"] == 131_072
    assert printed["bytes_per_sequence"] == 16 * GIB
    assert printed["fit"] is None


def test_wrong_usage_is_one_line_and_exit_2(capsys):
    for arguments in (["lama"], ["llama-3.1-8b", "--dtype", "bf17"], ["llama-3.1-8b", "--gpu-memory", "lots"]):
        assert main(["estimate", *arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
