"""What the openvino adapter declares on which processor, and says where the package is missing."""

import builtins

import pytest

from kvbench.adapters import openvino as module
from kvbench.adapters.openvino import OpenVinoAdapter, capabilities_here, load_openvino
from kvbench.errors import AdapterError
from kvbench.registry import built_in


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : fpu sse2 avx2 f16c\n", ["f32", "f16", "u8"]),
        ("flags : avx512f avx512_bf16\n", ["f32", "bf16", "f16", "u8"]),
        ("flags : avx512f amx_bf16 amx_tile\n", ["f32", "bf16", "f16", "u8"]),
        (None, ["f32", "f16", "u8"]),
    ],
)
def test_bf16_is_declared_where_the_processor_multiplies_it(tmp_path, monkeypatch, flags, expected):
    listing = tmp_path / "cpuinfo"
    if flags is not None:
        listing.write_text(flags)
    monkeypatch.setattr(module, "Path", lambda path: listing)
    assert [precision.name for precision in capabilities_here().precisions] == expected


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch):
    importing = builtins.__import__

    def refuse(name, *arguments, **keywords):
        if name == "openvino":
            raise ImportError("No module named 'openvino'")
        return importing(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(AdapterError, match=r"adapter openvino: .*pip install 'kvbench\[openvino\]'"):
        load_openvino()


def test_a_release_without_paged_attention_is_refused(monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.delattr("openvino.op._PagedAttentionExtension")
    with pytest.raises(AdapterError, match=r"has no paged attention; pip install -U 'kvbench\[openvino\]'"):
        load_openvino()


def test_it_is_a_kernel_alone():
    assert built_in("openvino").extra == "openvino"
    assert OpenVinoAdapter().capabilities.manager is None
