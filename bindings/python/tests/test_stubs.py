"""The types in _triad.pyi are those of the module."""

import ast
import inspect
from pathlib import Path

import triad
from triad import _triad

STUBS = ast.parse((Path(triad.__file__).parent / "_triad.pyi").read_text())
# Types of arguments, which the module itself has no names for.
TYPES = {"Logits", "Messages", "Path", "Options"}


def names(module):
    return {name for name in vars(module) if not name.startswith("_")}


def test_every_name_of_the_module_has_a_stub_and_every_stub_a_name():
    classes = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in STUBS.body if isinstance(node, ast.FunctionDef)}
    assert classes.keys() - TYPES | functions == names(_triad)
    for name, node in classes.items():
        if name not in TYPES:
            stubs = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            own = {member for member in vars(getattr(_triad, name)) if not member.startswith("_")}
            assert {stub for stub in stubs if not stub.startswith("_")} == own, name


def test_every_argument_of_a_stub_is_one_of_the_function():
    for node in ast.walk(STUBS):
        if not isinstance(node, ast.ClassDef) or node.name in TYPES:
            continue
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.decorator_list and item.name != "__next__":
                owner = getattr(_triad, node.name)
                function = owner if item.name == "__init__" else getattr(owner, item.name)
                arguments = [one.arg for one in (*item.args.args, *item.args.kwonlyargs) if one.arg != "self"]
                actual = inspect.signature(function).parameters.values()
                assert arguments == [one.name for one in actual if one.name not in ("self", "options")], item.name


def test_the_package_exports_what_the_module_has():
    assert set(triad.__all__) - {"Error", "__version__"} == names(_triad)


def test_every_public_item_is_described():
    for name in names(_triad):
        item = getattr(_triad, name)
        assert inspect.getdoc(item), name
        if inspect.isclass(item) and not issubclass(item, Exception):
            for member, value in vars(item).items():
                assert member.startswith("_") or inspect.getdoc(value), f"{name}.{member}"
