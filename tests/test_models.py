"""The shapes of public models, and finding them by name."""

import pytest

from kvbench.errors import UsageError
from kvbench.models import element_format, find_model, list_models, load_models
from kvbench.reference.memory import bytes_per_token, sequence_bytes

BF16 = element_format("bf16")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("opt-13b", 800 * 1024),
        ("llama-3.1-8b", 128 * 1024),
        ("llama-3.1-70b", 320 * 1024),
        ("llama-3.1-405b", 504 * 1024),
        ("mistral-7b-v0.1", 0),  # every layer has a window
        ("gpt-oss-20b", 24 * 1024),  # 12 of 24 layers have none
        ("deepseek-v3", 70_272),
        ("deepseek-v3.2", 70_272 + 8_052),
        ("qwen3-next-80b-a3b", 24 * 1024),  # 12 of 48 layers cache keys
    ],
)
def test_a_long_sequence_grows_by_this_many_bytes_a_token(name, expected):
    assert bytes_per_token(find_model(name).groups(BF16)) == expected


def test_windows_hold_a_sequence_down():
    groups = find_model("gemma-3-27b").groups(BF16)
    assert sequence_bytes(groups, 131_072) == 2 * 16 * 128 * 2 * (10 * 131_072 + 52 * 1024)


def test_every_model_has_a_source_and_sizes_that_can_be_computed():
    models = load_models()
    assert len(models) >= 51
    for model in models:
        assert model.source
        groups = model.groups(BF16)
        assert sequence_bytes(groups, 1) > 0
        assert sequence_bytes(groups, model.max_context) > sequence_bytes(groups, 1)
        assert model.q_heads % model.kv_heads == 0
        assert model.head_dim > 0
        assert (model.parameters is None) == (model.parameters_source is None)


def test_names_and_aliases_name_one_model_each():
    names = [name for model in load_models() for name in model.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "LLAMA-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct", "llama_3.1_8b", " llama-8b "]
)
def test_a_model_is_found_by_the_names_that_people_type(name):
    assert find_model(name).name == "Llama-3.1-8B"


def test_a_mistyped_model_gets_a_suggestion():
    with pytest.raises(UsageError, match=r"'lama-3.1-8b'.*did you mean 'Llama-3.1-8B'.*kvbench list models"):
        find_model("lama-3.1-8b")


@pytest.mark.parametrize("name", ["", "/", "gpt-17-omega"])
def test_an_unknown_model_is_refused(name):
    with pytest.raises(UsageError, match="unknown model"):
        find_model(name)


def test_an_attention_kernel_sees_the_latent_as_one_wide_head():
    model = find_model("deepseek-r1")
    assert (model.q_heads, model.kv_heads, model.head_dim) == (128, 1, 576)


def test_weights_count_in_the_format_they_are_published_in():
    assert find_model("llama-3.1-8b").weight_bytes == 8_030_261_248 * 2
    assert find_model("deepseek-v3").weight_bytes == 671_000_000_000
    assert find_model("gpt-oss-20b").weight_bytes == int(12.8 * 2**30)
    assert find_model("glm-5").weight_bytes is None


@pytest.mark.parametrize(("name", "bits"), [("bf16", 16), ("FP16", 16), ("f32", 32), ("fp8", 8), ("int4", 4)])
def test_data_types_go_by_their_usual_names(name, bits):
    assert element_format(name).bits == bits


def test_an_unknown_data_type_is_refused_with_the_known_ones():
    with pytest.raises(UsageError, match=r"'bf17'.*did you mean 'bf16'.*float32, bfloat16"):
        element_format("bf17")


def test_the_list_has_a_row_a_model():
    rows = list(list_models())
    assert {row["name"] for row in rows} == {model.name for model in load_models()}
    assert {"name": "Llama-3.1-8B", "bytes_per_token": 131_072}.items() <= rows[3].items()
