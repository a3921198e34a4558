"""Where the functions of a file begin and end.

For C++ and CUDA, braces are counted, in clang-format's layout: a body's last brace begins a line, in
the column in which the function began. So the counting needs no parser of C++.
"""

import ast
import dataclasses
import re

_LITERAL = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])'|//[^\n]*|/\*.*?\*/", re.DOTALL)
_RAW_STRING = re.compile(r'R"(\w*)\((.*?)\)\1"', re.DOTALL)
_CONTROL = re.compile(r"(if|else|for|while|do|switch|case|default|try|catch|return|co_return)\b|}")
_SCOPE = re.compile(r"(template <.*> )?(inline )?(class|struct|union|enum|namespace|extern)\b(?!.*\)\s*(const )?{$)")
_ATTRIBUTE = re.compile(r"\b(__launch_bounds__|alignas|__align__|decltype|noexcept|requires|__attribute__)\b\s*\(+")
_NAME = re.compile(r"(operator\s*(?:\(\)|\[\]|[^\s\w(]+|\w+)|~?\w+)\s*\(")


@dataclasses.dataclass(frozen=True)
class Function:
    name: str
    begin: int  # the line of its name, from 1
    end: int  # of its last brace or statement

    @property
    def num_lines(self):
        return self.end - self.begin + 1


def python_functions(text):
    """All functions of a Python file. A nested function counts by itself, and in the outer function, too."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return [Function(node.name, node.lineno, node.end_lineno) for node in nodes]


def blocks_with_heads(text):
    """[(the text before the brace, first line, last line)], from 1, of each block of more than one line."""
    lines = _code_of(text).split("\n")
    for begin, end in sorted(_blocks(lines)):
        first = _head_of(lines, begin, end)
        yield " ".join(line.strip() for line in lines[first : begin + 1]), first + 1, end + 1


def cpp_functions(text):
    """Functions whose last brace has a line of its own. A lambda counts in its function; one that
    initializes a variable of a namespace is a function with the variable's name.
    """
    lines = _code_of(text).split("\n")
    found = []
    function_ends_at = 0
    for begin, end in sorted(_blocks(lines)):
        if begin < function_ends_at or lines[end].strip() not in ("}", "};"):
            continue
        first = _head_of(lines, begin, end)
        head = " ".join(line.strip() for line in lines[first : begin + 1])
        name = _name_of(head)
        if name:
            found.append(Function(name, first + 1, end + 1))
            function_ends_at = end
    return found


def _code_of(text):
    """The text without strings and comments. The lines stay."""

    def blank(found):
        is_comment = found[0].startswith("/")
        return ("" if is_comment else '""') + "\n" * found[0].count("\n")

    text = _LITERAL.sub(blank, _RAW_STRING.sub(blank, text))
    return re.sub(r"^[ \t]*#.*$", "", text, flags=re.MULTILINE)


def _blocks(lines):
    """[(line of {, line of })], from 0, of all that have more than one line."""
    open_at = []
    for number, line in enumerate(lines):
        for character in line:
            if character == "{":
                open_at.append(number)
            elif character == "}" and open_at:
                begin = open_at.pop()
                if begin != number:
                    yield begin, number


def _head_of(lines, begin, end):
    """The line in which the text before a block begins."""
    first, column = begin, _indent(lines[end])
    while first > 0 and (_indent(lines[first]) != column or not _begins_a_head(lines[first])):
        first -= 1
    return first


def _indent(line):
    return len(line) - len(line.lstrip())


def _begins_a_head(line):
    return bool(line.strip()) and not line.lstrip().startswith((")", ":", "{", "}"))


def _name_of(head):
    """The name of the function that begins with `head`, the text before a block; None: no function begins."""
    if _CONTROL.match(head) or _SCOPE.match(head):
        return None
    lambda_of = re.search(r"(\w+) = \[", head)
    if lambda_of:
        return lambda_of[1]
    name = _NAME.search(_ATTRIBUTE.sub("", head))
    if not name or "=" in head[: head.index(name[1])]:
        return None
    return re.sub(r"\s", "", name[1])
