"""No circle among the imports of the client package or of the launcher, imports inside functions included."""

import ast
import textwrap

import pytest

from project import files, read

ROOTS = {"client/python": 60, "launch/lib": 15}  # the folder of each group of modules, with the number it has at least


def modules_below(folder):
    """{name: source}; a package's own module has the name of the package and ends in `.__init__`."""
    below = [path for path in files(".py") if path.as_posix().startswith(folder + "/")]
    return {".".join(path.relative_to(folder).with_suffix("").parts): read(path) for path in below}


def imported_names(name, source):
    """Yields what the module imports: the absolute names of modules, and of names in modules."""
    package = name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *(node.module or "").split(".")] if node.module else base
            yield from (".".join([*base, each.name]) for each in node.names)


def module_of(name, modules):
    """The module with this name, or the one that defines it. None: another library's."""
    for candidate in (name, f"{name}.__init__", name.rpartition(".")[0], name.rpartition(".")[0] + ".__init__"):
        if candidate in modules:
            return candidate
    return None


def circles(modules):
    """One circle of imports for each module that is in any, written from its first name on."""
    imports = {
        name: {module_of(each, modules) for each in imported_names(name, source)} - {None}
        for name, source in modules.items()
    }
    found = set()
    for first in modules:
        paths, seen = [[first]], set()
        while paths:
            path = paths.pop()
            if first in imports[path[-1]]:
                begin = path.index(min(path))
                found.add(" -> ".join([*path[begin:], *path[:begin], path[begin]]))
                break
            new = sorted(imports[path[-1]] - seen)
            seen.update(new)
            paths += [[*path, each] for each in new]
    return sorted(found)


@pytest.mark.parametrize("folder", ROOTS)
def test_no_modules_import_each_other_in_a_circle(folder):
    modules = modules_below(folder)
    assert len(modules) >= ROOTS[folder]
    found = circles(modules)
    assert not found, "\n".join(found)


def planted(**sources):
    return {f"p.{name}": textwrap.dedent(source) for name, source in sources.items()}


def test_a_circle_through_a_function_is_found():
    function = "def digest():\n    from .push import tensor_digest\n    return tensor_digest()\n"
    modules = planted(
        arrays="from .cuda import Array\n", cuda=function, push="from . import arrays\n", other="import os"
    )
    assert circles(modules) == ["p.arrays -> p.cuda -> p.push -> p.arrays"]


@pytest.mark.parametrize(
    "one, other",
    [
        ("import p.b\n", "from p import a\n"),
        ("from .b import x\n", "if True:\n    from p.a import y\n"),
        ("from .b import x\n", "from ..p.a import y\n"),
    ],
)
def test_each_form_of_an_import_is_read(one, other):
    assert circles(planted(a=one, b=other)) == ["p.a -> p.b -> p.a"]
    assert circles(planted(a=one, b="import os\n")) == []


def test_a_package_is_a_module_too():
    modules = {"p.__init__": "from .a import x\n", "p.a": "from . import x\n"}
    assert circles(modules) == ["p.__init__ -> p.a -> p.__init__"]
