"""Naming adapters, and refusing what is not one: one clear line each."""

import textwrap

import pytest

from kvbench.errors import AdapterError, UsageError
from kvbench.registry import BUILT_IN, list_adapters, load_adapter

GOOD = """
    from kvbench.interface import Capabilities, ManagerCapabilities

    class Adapter:
        name = "mine"
        version = "1"
        about = "an adapter in a file"
        capabilities = Capabilities(manager=ManagerCapabilities())

        def manager(self, spec, config):
            return object()
"""


@pytest.fixture
def adapter_file(tmp_path):
    def write(source, name="mine.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return f"{path}:Adapter"

    return write


def test_every_built_in_adapter_is_listed_with_how_to_get_it():
    listed = {adapter.name: adapter for adapter in list_adapters()}
    assert [entry.name for entry in BUILT_IN] == list(listed)[: len(BUILT_IN)]
    for entry in BUILT_IN:
        missing = listed[entry.name].missing
        assert missing is None or "pip install" in missing


def test_an_adapter_is_loaded_from_a_file(adapter_file):
    assert load_adapter(adapter_file(GOOD)).name == "mine"


def test_two_files_of_the_same_name_do_not_replace_each_other(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text(textwrap.dedent(GOOD).replace('"mine"', f'"{folder}"'))
    names = [load_adapter(f"{tmp_path / folder / 'a.py'}:Adapter").name for folder in ("one", "two")]
    assert names == ["one", "two"]


def test_an_adapter_is_loaded_from_a_module(adapter_file, tmp_path, monkeypatch):
    adapter_file(GOOD, name="a_module_of_mine.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_adapter("a_module_of_mine:Adapter").name == "mine"


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("refrence", "unknown adapter 'refrence' (did you mean 'reference'?)"),
        ("", "adapter name '' is not a name"),
        ("a\nb", "is not a name"),
        ("../../etc/passwd", "unknown adapter"),
        ("no_such_module_here:Adapter", "there is no module no_such_module_here"),
        ("kvbench.registry:Nothing", "Nothing is not in that module"),
        ("./nowhere.py:Adapter", "there is no file nowhere.py"),
        ("./nowhere.py", "names no class; write ./nowhere.py:ClassName"),
        ("<script>alert(1)</script>", "unknown adapter"),
    ],
)
def test_a_name_that_is_not_known_is_wrong_usage(spec, complaint):
    with pytest.raises(UsageError) as refused:
        load_adapter(spec)
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("raise RuntimeError('no luck')", "raised RuntimeError: no luck on import"),
        ("def broken(:", "SyntaxError"),
        ("import a_package_that_is_not_there", "ModuleNotFoundError"),
        ("Adapter = 3", "expected a class, found int"),
        ("class Adapter:\n    def __init__(self): 1 / 0", "raised ZeroDivisionError"),
        ("class Adapter: pass", "it must have a printable text 'name'"),
        (GOOD.replace('"mine"', "'x' * 999"), "it must have a printable text 'name'"),
        (GOOD.replace("Capabilities(manager=ManagerCapabilities())", "{}"), "'capabilities' must be a"),
        (GOOD.replace("manager=ManagerCapabilities()", ""), "declares neither a manager nor a kernel"),
        (GOOD.replace("def manager", "def other"), "declares a manager but has no method manager()"),
        (
            GOOD.replace("ManagerCapabilities()", "ManagerCapabilities(operations=frozenset({'forc'}))"),
            "unknown manager operation 'forc' (did you mean 'fork'?)",
        ),
        (GOOD.replace("ManagerCapabilities()", "ManagerCapabilities(max_groups=0)"), "max_groups must be at least 1"),
        (GOOD.replace("ManagerCapabilities()", "ManagerCapabilities(block_sizes=16)"), "block_sizes must be a"),
    ],
)
def test_an_adapter_that_cannot_be_one_is_refused_in_one_line(adapter_file, source, complaint):
    with pytest.raises(AdapterError) as refused:
        load_adapter(adapter_file(source))
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kernel", "complaint"),
    [
        ("KernelCapabilities(precisions=())", "must declare at least one Precision"),
        ("KernelCapabilities(precisions=(FLOAT32, FLOAT32))", "same name twice"),
        ("KernelCapabilities(precisions=(Precision('x', 'float31', 'float32'),))", "compute 'float31' is not one of"),
        ("KernelCapabilities(options=frozenset({'sink'}))", "unknown kernel option 'sink' (did you mean 'sinks'?)"),
        ("KernelCapabilities(head_dims=Sizes(minimum=9, maximum=8))", "head_dims is empty"),
        ("KernelCapabilities(block_sizes=Sizes((0,)))", "block_sizes allows sizes below 1"),
        ("KernelCapabilities(limits=(Limit('poisson', 'x'),))", "unknown limit 'poisson'"),
        ("KernelCapabilities(limits=(Limit('poison', ''),))", "limit 'poison' needs a reason"),
    ],
)
def test_a_kernel_that_declares_nonsense_is_refused(adapter_file, kernel, complaint):
    source = GOOD.replace("import Capabilities, ManagerCapabilities", "import *").replace(
        "manager=ManagerCapabilities()", f"kernel={kernel}"
    )
    source += "\n        def kernel(self, config):\n            return object()\n"
    with pytest.raises(AdapterError) as refused:
        load_adapter(adapter_file(source))
    assert complaint in str(refused.value)
