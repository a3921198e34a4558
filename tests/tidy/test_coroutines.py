"""No co_await is in a form that GCC 12 compiles wrongly (coroutines.py); a program for each form
shows the fault.
"""

import re
import shutil
import subprocess

import pytest

from coroutines import braces_with_co_await, choices_with_co_await, conditions_with_co_await, is_destroyed_as_nothing
from project import ROOT, files, read

PROGRAMS = ROOT / "tests" / "tidy" / "coroutine_faults"
CASES = {
    "choice": ["and", "or", "branch"],
    "condition": ["if", "while", "do", "for", "switch"],
    "braces": ["named", "unnamed", "awaited", "beside", "around"],
}
# Calls whose arguments are all texts: their unnamed braces are an empty std::string_view.
TAKES_TEXTS = {"send_now()": "Sent send_now(std::string_view head, std::string_view bytes, std::string_view tail);"}

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
def test_other_forms_are_not_found(code):
    assert not choices_with_co_await(f"Task<int> f(bool is_up) {{\n{code}\n}}\n")


IN_CONDITION = {
    "if": "if (co_await ready()) go();",
    "a negation": "if (!co_await ready()) co_return;",
    "an argument": "if (is_so(1, co_await ready())) go();",
    "else if": "if (up) go(); else if (co_await ready()) stay();",
    "while": "while (co_await more()) go();",
    "do": "do { go(); } while (co_await more());",
    "for": "for (; co_await more();) go();",
    "switch": "switch (co_await code()) { case 1: go(); }",
    "inside another": "if (up) { while (left > 0) { if (co_await ready()) go(); } }",
    "behind another call": "co_await begin();\nif (co_await ready()) go();",
    "only a lambda's variable": "run([] { const int n = 3; use(n); });\nif (co_await ready()) go();",
    "words that name no variable": "using Bool = bool; is_up = a * b; go (b); if (co_await ready()) co_return c;",
}
BESIDE_A_VARIABLE = {
    "before": "const bool is_up = up();\nif (co_await ready()) go();",
    "behind": "if (co_await ready()) go();\nint n = 3;",
    "of the condition": "if (const auto version = co_await serving()) go();",
    "of a loop's condition": "while (auto event = co_await next()) go();",
    "of a loop": "for (int i = 0; co_await more(); ++i) go();",
    "of a range": "for (const Part& part : parts) { if (co_await ready(part)) go(); }",
    "without a value": "Parser parser; if (co_await ready()) go();",
    "with arguments": "Parser parser(limits); if (co_await ready()) go();",
    "of a namespace's type": "std::vector<int> parts{}; if (co_await ready()) go();",
    "parts of a value": "auto [a, b] = both(); if (co_await ready()) go();",
    "no condition": "co_await ready();",
    "what is awaited in its body": "if (is_up) co_await ready();",
}


@pytest.mark.parametrize("code", IN_CONDITION.values(), ids=IN_CONDITION)
def test_each_condition_is_found(code):
    within = f"Task<> f(bool up) {{\n{code}\n}}\n"
    wanted = [
        n for n, line in enumerate(within.split("\n"), 1) if re.search(r"\b(if|while|for|switch) \(.*co_await", line)
    ]
    assert conditions_with_co_await(within) == wanted and wanted


@pytest.mark.parametrize("code", BESIDE_A_VARIABLE.values(), ids=BESIDE_A_VARIABLE)
def test_other_conditions_are_not_found(code):
    assert not conditions_with_co_await(f"Task<> f(bool up) {{\n{code}\n}}\n")


MADE = {
    "an argument": ("co_await ask(Question{1});", ["Question"]),
    "an argument of a namespace": ("co_await tree.call(messages::Status{}, kTime);", ["messages::Status"]),
    "unnamed": ("co_await ask({.value = 1}, {});", ["ask()", "ask()"]),
    "what is awaited": ("const bool is_so = co_await More{*this};", ["More"]),
    "within another": ("co_await ask(Outer{Inner{1}, 2});", ["Outer", "Inner"]),
    "beside": ("co_return sum(Question{}, co_await one());", ["Question"]),
    "around": ("const int n = Question{co_await one()}.value;", ["Question"]),
    "around, of a variable": ("Question question{co_await one()};", ["Question"]),
    "around, of a plain variable": ("const int n{co_await one()};", ["int"]),
    "without a name": ("Question question = {co_await one()};", ["{}"]),
    "returned": ("co_return {co_await one(), 2};", ["{}"]),
    "of a template": ("co_await ask(std::vector<int>{}, Pair<int, Part>{});", ["std::vector", "Pair"]),
    "in a condition": ("if (!co_await Sending{*this}) co_return Response{};", ["Sending"]),
    "a lambda's": ("co_await run([] { return Question{}; });", []),
    "another statement's": ("Question question{1};\nco_await ask(question);\nuse(Question{});", []),
    "another block's": ("if (up) { use(Question{}); } co_await one(); { use(Question{}); }", []),
    "a body's": ("if (co_await one()) { use(Question{}); } else { use(Question{}); }", []),
}


@pytest.mark.parametrize("code, made", MADE.values(), ids=MADE)
def test_values_that_braces_make_beside_a_co_await_are_found(code, made):
    assert [kind for _, kind in braces_with_co_await(f"Task<> f(bool up) {{\n{code}\n}}\n")] == made


TYPES = """
enum class Id : std::uint32_t {};
struct Plain { static constexpr std::string_view kType = "plain"; Id id{}; std::int64_t time_ms = 0;
               template <class F> void fields(F&& f) { f("id", id); } };
struct Refers { Plain plain; Text& text; const Text* next = nullptr; void use() const; };
struct Text { std::string text{}; };
struct Holds { int n = 0; Text text{}; };
struct Many { std::vector<int> parts; };
struct Derived : Plain { int n = 0; };
class Made { public: explicit Made(Text text) : text_(text) {} private: Text text_; };
struct Outer::Inner { bool is_so = false; };
"""


@pytest.mark.parametrize(
    "name, is_nothing",
    [(name, True) for name in ("Id", "Plain", "Refers", "Made", "Inner")]
    + [(name, False) for name in ("Text", "Holds", "Many", "Derived", "Unknown")],
)
def test_types_with_nothing_to_destroy_are_recognized(name, is_nothing):
    assert is_destroyed_as_nothing(name, [TYPES]) == is_nothing


def coroutine_files():
    sources = [path for path in files(".h", ".cpp", ".cu", ".cuh") if PROGRAMS not in (ROOT / path).parents]
    return [path for path in sources if "co_await" in read(path)]


def test_no_co_await_stands_inside_a_choice():
    wrong = [
        f"{path}:{line}: co_await inside ?:, && or ||; give it a statement of its own"
        for path in coroutine_files()
        for line in choices_with_co_await(read(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_co_await_stands_in_a_condition_of_a_function_without_variables():
    wrong = [
        f"{path}:{line}: co_await in a condition; give its value a name in a statement before"
        for path in coroutine_files()
        for line in conditions_with_co_await(read(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_braces_beside_a_co_await_make_an_aggregate_that_has_something_to_destroy():
    product = [read(path) for path in files(".h", ".cpp") if path.parts[0] != "tests"]
    wrong = [
        f"{path}:{line}: {kind} in braces beside a co_await; make it a variable before"
        for path in coroutine_files()
        for line, kind in braces_with_co_await(read(path))
        if not (kind in TAKES_TEXTS or re.fullmatch(r"std::(?!array|pair)\w+|int|bool", kind))
        and not is_destroyed_as_nothing(kind.split("::")[-1], product)
    ]
    assert not wrong, "\n".join(wrong)
    assert all(declared in read("http_proc/server/connection.h") for declared in TAKES_TEXTS.values())


@pytest.mark.parametrize(
    "form, found_in",
    [("choice", choices_with_co_await), ("condition", conditions_with_co_await), ("braces", braces_with_co_await)],
)
def test_each_form_is_found_in_its_program_and_not_in_the_written_out_code(form, found_in):
    text = (PROGRAMS / f"{form}.cpp").read_text(encoding="utf-8")
    lines = [found if isinstance(found, int) else found[0] for found in found_in(text)]
    written_out = [text.split("\n").index(mark) + 1 for mark in ("#else", "#endif")]
    assert len(lines) == len(CASES[form])
    assert all(written_out[0] < line < written_out[1] for line in lines), lines


@pytest.mark.skipif(not shutil.which("g++"), reason="g++ is not installed")
@pytest.mark.parametrize("form", CASES)
def test_gcc_12_compiles_each_form_wrongly_and_the_written_out_code_rightly(form, tmp_path):
    major = int(subprocess.run(["g++", "-dumpversion"], capture_output=True, check=True).stdout.split(b".")[0])
    for written_out in (False, True):
        program = tmp_path / f"{form}_{written_out}"
        command = ["g++", "-std=c++20", "-fcoroutines", "-I", ROOT, *["-DWRITTEN_OUT"] * written_out]
        sources = [PROGRAMS / f"{form}.cpp", ROOT / "base" / "check.cpp"]
        subprocess.run([*command, *sources, "-o", program], check=True)
        for case in CASES[form]:
            done = subprocess.run([program, case], capture_output=True, text=True, check=False)
            if written_out:
                assert done.returncode == 0, (case, done)
            elif major == 12:  # a later compiler may be right
                assert done.returncode != 0, f"{case}: no fault any more ({done.stdout}); may it be used again?"
