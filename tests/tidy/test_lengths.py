"""A file has at most 500 lines, a function fewer than 70 (docs/style.md, section 1)."""

import pytest

from functions import Function, cpp_functions, python_functions
from project import CODE, files, read

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 69


def programs():
    """Every file of code: C++ and CUDA, Python, and programs whose first line names Python."""
    named = [path for path in files(*CODE, ".py", ".cmake", ".sh") if path.suffix != ".inc"]  # a program's tables
    scripts = [path for path in files() if not path.suffix and path.parts[0] in ("launch", "bench", "tests")]
    return sorted({*named, *(path for path in scripts if first_line(path).startswith("#!"))})


def first_line(path):
    try:
        return read(path).partition("\n")[0]
    except UnicodeDecodeError:
        return ""


def functions_of(path):
    if path.suffix in CODE:
        return cpp_functions(read(path))
    if path.suffix == ".py" or "python" in first_line(path):
        return python_functions(read(path))
    return []


def test_no_file_is_longer_than_it_may_be():
    wrong = []
    for path in programs():
        num_lines = len(read(path).splitlines())
        if num_lines > FILE_LINES_MAX:
            wrong.append(f"{path} has {num_lines} lines, more than {FILE_LINES_MAX}: split it by its nouns")
    assert not wrong, "\n".join(wrong)


def test_no_function_is_longer_than_it_may_be():
    wrong = []
    for path in programs():
        for function in functions_of(path):
            if function.num_lines > FUNCTION_LINES_MAX:
                length = f"{function.num_lines} lines, more than {FUNCTION_LINES_MAX}"
                wrong.append(f"{path}:{function.begin}: {function.name} has {length}")
    assert not wrong, "\n".join(wrong)


def test_most_functions_of_the_project_are_found():
    num = sum(len(functions_of(path)) for path in files(".cpp", ".cu"))
    assert num > 5000, num


def test_kernels_and_their_inlined_functions_are_found():
    """In .cu and .cuh files, more words precede a function's name than in .cpp files."""
    names = {function.name for path in files(".cu", ".cuh") for function in functions_of(path)}
    assert {"prefill_kernel", "top_logits_kernel", "copy_tiles", "multiply_tiles", "find_nth"} <= names


SAMPLES = {
    "a plain one": ("int f() {\n    return 1;\n}\n", [("f", 1, 3)]),
    "a line each for its parameters": ("void f(\n    int a,\n    int b\n) {\n    g();\n}\n", [("f", 1, 6)]),
    "of a class": ("Result<> A::f(int a) const {\n    g();\n}\n", [("f", 1, 3)]),
    "in a class": ("class A {\n  public:\n    int f() {\n        return 1;\n    }\n};\n", [("f", 3, 5)]),
    "a constructor with a list": (
        "A::A(int a)\n    : a_(a),\n      b_{a} {\n    if (a) {\n        g();\n    }\n}\n",
        [("A", 1, 7)],
    ),
    "an operator": ("bool A::operator()(int a) {\n    return a;\n}\n", [("operator()", 1, 3)]),
    "a template": ("template <class T, int N = f(1)>\nT f(T t) {\n    return t;\n}\n", [("f", 2, 4)]),
    "a kernel": (
        "__global__ void __launch_bounds__(kThreads) rms_kernel(\n    int a\n) {\n    g();\n}\n",
        [("rms_kernel", 1, 5)],
    ),
    "one that a kernel inlines, in a struct": (
        "template <int D>\nstruct A {\n    __device__ __forceinline__ int f(\n        int a\n    ) const {\n        return a;\n    }\n};\n",
        [("f", 3, 7)],
    ),
    "one whose name has a line of its own": (
        "__device__ __forceinline__ B\nf(int a, int b) {\n    return {a, b};\n}\n",
        [("f", 2, 4)],
    ),
    "a test": ("TEST(A, IsSo) {\n    g();\n}\n", [("TEST", 1, 3)]),
    "blocks within one": (
        "void f() {\n    if (a) {\n        g();\n    } else {\n        h();\n    }\n    for (;;) {\n        k();\n    }\n}\n",
        [("f", 1, 10)],
    ),
    "a lambda within one": ("void f() {\n    const auto g = [&] {\n        h();\n    };\n    g();\n}\n", [("f", 1, 6)]),
    "a lambda of a namespace": ("const auto g = [](int a) {\n    h(a);\n};\n", [("g", 1, 3)]),
    "braces in strings and comments": (
        'void f() {\n    g("}\\"{", \'{\');  // }\n    /* {\n    } */\n    h(R"({)");\n}\n',
        [("f", 1, 6)],
    ),
    "digits with separators": (
        "int f() {\n    return 1'000'000;\n}\n\nint g() {\n    return 2;\n}\n",
        [("f", 1, 3), ("g", 5, 7)],
    ),
    "no function: a table": ("const int kAll[] = {\n    f(1),\n    2,\n};\n", []),
    "no function: types and namespaces": (
        "namespace a {\nstruct B {\n    int c = f(1);\n};\nenum class D {\n    kE,\n};\n}  // namespace a\n",
        [],
    ),
}


@pytest.mark.parametrize("text, expected", SAMPLES.values(), ids=SAMPLES.keys())
def test_functions_of_cpp_are_found_with_their_lines(text, expected):
    assert cpp_functions(text) == [Function(*one) for one in expected]


def test_functions_of_python_are_found_with_their_lines():
    text = (
        "def f():\n    def g():\n        return 1\n    return g\n\n\nclass A:\n    async def h(self):\n        pass\n"
    )
    assert set(python_functions(text)) == {Function("f", 1, 4), Function("g", 2, 3), Function("h", 8, 9)}
