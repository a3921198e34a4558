"""No co_await stands where GCC 12 evaluates it although it should not be (coroutines.py)."""

import pytest

from coroutines import choices_with_co_await
from project import files, read

WRONG = {
    "the condition of ?:": "co_return co_await ready(x) ? 200 : 503;",
    "in && in the condition of ?:": "co_return empty(is_up && co_await ready(x) ? 200 : 503);",
    "the first branch of ?:": "const int code = is_up ? co_await ready(x) : 503;",
    "the second branch of ?:": "const int code = is_up ? 503 : co_await ready(x);",
    "the right operand of &&": "bool both = a && co_await b;",
    "the left operand of &&": "bool both = co_await b && a;",
    "the right operand of ||": "if (a || !co_await b) co_return;",
    "the left operand of ||": "if (!co_await b || a) co_return;",
    "and in letters": "bool both = a and co_await b;",
    "or in letters": "bool one = a or co_await b;",
    "a loop's condition": "while (left > 0 && co_await More{*this}) { --left; }",
    "the condition of do": "do { ++n; } while (n < 3 && co_await more());",
    "the condition of for": "for (int i = 0; i < 3 && co_await more(); ++i) {}",
    "several lines": "co_return Response::empty(\n    is_up &&\n    co_await\n    ready(x)\n    ? 200\n    : 503\n);",
    "an argument in a branch": "const int n = is_up ? sum(1, co_await more(x)) : 0;",
    "a member of a value in a branch": "const Answer n = is_up ? Answer{1, co_await more(x)} : none;",
    "behind template arguments": "const int n = take(co_await more<A, B>(x) ? 1 : 2, 3);",
    "after a value in braces": "bool is_so = Pair{1, 2}.is_whole && co_await more();",
    "before a value in braces": "bool is_so = co_await More{*this, Pair{1, 2}} && Pair{1, 2}.is_whole;",
    "the statement of an if": "if (is_up) code = a && co_await more();",
    "an argument of a check": "CHECK(co_await more() && is_up);",
    "a lambda's body": "auto f = [&]() -> Task<bool> { co_return a && co_await b; };",
    "behind a comment": "bool both = a /* why */ && // and how\n    co_await b;",
    "an index": "const int n = is_up ? codes[co_await more()] : 0;",
}
RIGHT = {
    "a statement of its own": "const bool is_ready = co_await ready(x);\nco_return is_ready ? 200 : 503;",
    "a condition": "if (a && b) co_await c;",
    "a choice after it": "co_await c;\nbool both = a && b;",
    "an argument beside it": "f(a && b, co_await c, d ? 1 : 2);",
    "its own argument": "const int n = co_await more(is_up ? 1 : 2, a && b);",
    "its own member": "co_await More{is_up ? 1 : 2};",
    "a negation": "if (!co_await b) co_return;",
    "a comment": "// up && co_await ready(x) ? 200 : 503\n/* a || co_await b */",
    "a comment beside it": "co_await c;  // is it ready? a && b",
    "a text": 'say("a && co_await b ? 1 : 2");',
    "a text beside it": 'const int n = co_await more("a ? b : c");',
    "a raw text": 'say(R"x(a && co_await b)x");',
    "a question mark of a character": "const int n = co_await more('?');",
    "a reference": "auto&& value = co_await more();",
    "a move's parameter": "Task<> f(Part&& part) { co_await g(); }",
    "a range": "for (auto&& part : parts) co_await g(part);",
    "a lambda's neighbour": "bool is_so = a && f([&]() -> Task<> { co_await g(); });",
    "the body of a condition": "if (a && b) { co_await c; } else if (d || e) { co_await f; }",
    "a macro's definition": "#define BOTH(a, b) ((a) && \\\n    co_await (b))",
    "a digit separator": "const int n = 1'000; co_await c; const bool d = e && f; const char g = 'x';",
}


@pytest.mark.parametrize("code", WRONG.values(), ids=WRONG)
def test_each_form_is_found(code):
    within = f"Task<int> f(bool is_up) {{\n{code}\n}}\n"
    lines = choices_with_co_await(within)
    wanted = [n for n, line in enumerate(within.split("\n"), 1) if "co_await" in line]
    assert lines == wanted


@pytest.mark.parametrize("code", RIGHT.values(), ids=RIGHT)
def test_what_is_no_such_form_is_not(code):
    assert not choices_with_co_await(f"Task<int> f(bool is_up) {{\n{code}\n}}\n")


def test_no_co_await_stands_inside_a_choice():
    wrong = [
        f"{path}:{line}: co_await inside ?:, && or ||; give it a statement of its own"
        for path in files(".h", ".cpp", ".cu", ".cuh")
        for line in choices_with_co_await(read(path))
    ]
    assert not wrong, "\n".join(wrong)
