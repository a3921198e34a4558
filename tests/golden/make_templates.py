#!/usr/bin/env python3
"""Makes tests/data/jinja/: what the Python reference renders, for tests/jinja.

The reference is Jinja in the environment that transformers' chat_template_utils.py sets up, written
out here, so that neither torch nor transformers is needed. Made with Jinja 3.1.6, MarkupSafe 3.0.3,
Python 3.11.7; `--compare PROGRAM` runs fresh random cases against a built pitstop_render_template.

  NAME.jsonl         templates/NAME.jinja on many conversations
  expressions.jsonl  random expressions and statements

A case that does not say its source or its variables has those of the one before.
"""

import argparse
import copy
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "data" / "jinja"
# What strftime_now sees, here and there.
NOW = datetime.datetime(2026, 3, 14, 15, 9, 26)


class Generation(jinja2.ext.Extension):
    """{% generation %}: what AssistantTracker does to the text, which is nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """transformers' environment, but text % values is an error: no template is known to use it."""

    intercepted_binops = frozenset(["%"])

    def call_binop(self, context, operator, left, right):
        if isinstance(left, str):
            raise jinja2.exceptions.SecurityError("'%' after a text")
        return super().call_binop(context, operator, left, right)


def environment():
    env = Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols],
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def expected(source, variables):
    """{"text": ...}, or {"error": ..., "raised": whether the template raised it}."""
    try:
        # A copy: `indent` of a list adds to that very list before it fails.
        return {"text": ENV.from_string(source).render(**copy.deepcopy(variables))}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": str(error), "raised": False}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error), "raised": raised}
    except Exception as error:  # what templates do wrong comes as Python's own errors
        return {"error": f"{type(error).__name__}: {error}", "raised": False}


# ---- conversations ----

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter für einen Ort \u2014 \"now\" & <later>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "The city's name"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "maximum": 18446744073709551615},
                "precision": {"type": "number", "default": 0.5, "multipleOf": 1e-05},
            },
            "required": ["city"],
        },
    },
}
TIME = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.",
        "parameters": {"type": "object", "properties": {}, "required": []},
    },
}


def tool_call(name, arguments, call_id="call00001"):
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text, call_id="call00001", name="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": call_id, "name": name}


CONVERSATIONS = {
    "one": [user("Hello")],
    "system": [system("Be terse."), user("Hello")],
    "turns": [system("Be terse."), user("Hi"), assistant("Hello!"), user("How are you?")],
    "no_system_turns": [user("1"), assistant("2"), user("3"), assistant("4"), user("5")],
    "odd_text": [user("  \n{{ x }} <|im_end|> 'quoted' \"and\" \\n \t\u00fc\u4e2d\U0001f600 </think>\n")],
    "empty": [user("")],
    "two_users": [user("a"), user("b")],
    "assistant_first": [assistant("a"), user("b")],
    "system_late": [user("a"), system("late"), assistant("b"), user("c")],
    "thinking": [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\n4"), user("3+3?")],
    "thinking_last": [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\n4")],
    "reasoning_field": [user("2+2?"), assistant("4", reasoning_content="Two and two.\n")],
    "tool_call": [
        user("Weather in Köln?"),
        assistant("", tool_calls=[tool_call("get_weather", {"city": "Köln", "days": 2})]),
        tool("{\"temp\": 21.5}"),
    ],
    "tool_call_text": [
        system("Use tools."),
        user("Weather?"),
        assistant("Let me see.", tool_calls=[tool_call("get_weather", {"city": "Bonn"})]),
        tool("sunny"),
        assistant("It is sunny."),
        user("Thanks"),
    ],
    "tool_call_arguments_text": [
        user("Weather?"),
        assistant("", tool_calls=[tool_call("get_weather", "{\"city\": \"Bonn\"}")]),
        tool("sunny"),
    ],
    "tool_calls_two": [
        user("Weather and time?"),
        assistant(
            None,
            tool_calls=[
                tool_call("get_weather", {"city": "Bonn", "deep": {"a": [1, 2.5, None, True]}}),
                tool_call("get_time", {}, "call00002"),
            ],
        ),
        tool("sunny"),
        tool("12:00", "call00002", "get_time"),
        user("Go on"),
    ],
    "tool_result_mapping": [
        user("Weather?"),
        assistant("", tool_calls=[tool_call("get_weather", {"city": "Bonn"})]),
        tool({"temp": 21.5, "sky": "clear"}),
    ],
    "parts": [
        {"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}]}
    ],
    "image": [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}],
        }
    ],
    "none_content": [user("a"), assistant(None), user("b")],
    "unknown_role": [{"role": "critic", "content": "bad"}],
    "missing_content": [{"role": "user"}],
    "trailing_space": [user("a"), assistant("The answer is  \n")],
    "ends_with_assistant": [user("a"), assistant("The answer is")],
}

# What from_pretrained passes besides: the special tokens.
TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}


def variables_of(messages, **more):
    return {"messages": messages, "tools": None, "documents": None, **TOKENS, **more}


def chat_cases(name, source):
    for title, messages in CONVERSATIONS.items():
        for tools in (None, [WEATHER], [WEATHER, TIME]):
            if tools is not None and len(tools) == 2 and "tool" not in title:
                continue
            for prompt in (False, True):
                yield f"{name}/{title}/{len(tools or [])}/{prompt}", source, variables_of(
                    messages, tools=tools, add_generation_prompt=prompt
                )
    for thinking in (False, True):
        yield f"{name}/enable_thinking/{thinking}", source, variables_of(
            CONVERSATIONS["thinking"], add_generation_prompt=True, enable_thinking=thinking
        )
    for more in (
        {"custom_tools": [TIME]},
        {"builtin_tools": ["code_interpreter", "brave_search"]},
        {"date_string": "01 Jan 2026"},
        {"tools_in_user_message": False},
        {"thinking": True},
        {"reasoning_effort": "high"},
        {"documents": [{"title": "t", "text": "d"}]},
    ):
        yield f"{name}/{next(iter(more))}", source, variables_of(
            CONVERSATIONS["turns"], add_generation_prompt=True, **{"tools": [WEATHER], **more}
        )


# ---- random expressions ----

NAMES = {
    "n": 3,
    "m": -7,
    "f": 2.5,
    "g": -0.125,
    "zero": 0,
    "t": True,
    "u": False,
    "none_": None,
    "s": "Hello, World",
    "e": "",
    "w": "  padded\t\n",
    "z": "\u00dcn\u00efc\u00f6d\u00e9 \u4e2d\u6587 \U0001f600 stra\u00dfe",
    "q": "it's \"q\"\\ \n",
    "num": " 42 ",
    "xs": [3, 1, 2],
    "ss": ["b", "A", "c", "a"],
    "es": [],
    "mix": [1, "1", None, True, 2.5],
    "d": {"b": 1, "a": 2, "C": [1, {"x": "y"}]},
    "ed": {},
    "ps": [{"name": "Ann", "age": 30}, {"name": "bob", "age": 25, "ok": True}, {"name": "Cy", "age": 30}],
}
METHODS_OF_TEXT = (
    "upper()", "lower()", "strip()", "lstrip()", "rstrip()", "title()", "capitalize()", "swapcase()",
    "split()", "split(',')", "split('o', 1)", "rsplit(' ', 1)", "splitlines()", "strip('Hd ')",
    "startswith('He')", "endswith(('d', 'x'))", "find('o')", "rfind('o')", "count('l')", "replace('l', 'L')",
    "replace('', '-')", "replace('l', '', 1)", "partition(', ')", "rpartition('o')", "center(20, '*')",
    "ljust(15)", "rjust(15, '.')", "zfill(14)", "isdigit()", "isalpha()", "isupper()", "islower()",
    "isspace()", "isalnum()", "removeprefix('He')", "removesuffix('ld')", "join(['x', 'y'])", "index('W')",
    "find('o', 5)", "find('o', -3, 11)", "count('')", "split(none, 1)", "rsplit(none, 1)",
)
FILTERS = (
    "upper", "lower", "title", "capitalize", "trim", "length", "count", "list", "string", "int", "float",
    "int(7)", "float(1.5)", "first", "last", "reverse", "reverse|list", "sort", "sort(reverse=true)",
    "sort(case_sensitive=true)", "unique|list", "join", "join(', ')", "default('x')", "default('x', true)",
    "d('y')", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)",
    "tojson(separators=(',', ':'))", "tojson(indent=0)", "dictsort", "items|list", "abs", "round", "round(1)",
    "round(1, 'floor')", "round(0, 'ceil')", "e", "escape", "safe", "indent", "indent(2, true)",
    "indent(width='> ', blank=true)", "replace('l', 'LL')", "replace('o', '0', 1)", "map('upper')|list",
    "map('string')|join", "map('length')|list", "select|list", "reject|list", "select('string')|list",
    "select('>', 1)|list", "reject('none')|list", "selectattr('ok')|list", "rejectattr('ok')|list",
    "selectattr('age', 'equalto', 30)|list", "map(attribute='name')|list", "map(attribute='ok', default=0)|list",
    "sort(attribute='age')", "sort(attribute='age,name')", "sum", "max", "min", "center(12)", "wordcount",
    "batch(2)|list", "batch(2, 'f')|list", "slice(2)|list", "slice(2, 'f')|list", "truncate(8)",
    "truncate(8, true, '', 0)", "attr('upper')", "sum(attribute='age')", "unique(attribute='age')|list",
    "max(attribute='age')", "dictsort(by='value')", "dictsort(true)", "count|string",
)
TESTS = (
    "defined", "undefined", "none", "not none", "string", "mapping", "sequence", "iterable", "number",
    "integer", "float", "boolean", "true", "false", "odd", "even", "divisibleby(2)", "divisibleby 3",
    "eq 3", "equalto('x')", "ne none", "gt 1", "lt 2", "ge 2", "le 3", "in [1, 2, 3]", "in 'Hello'", "sameas none",
    "callable", "escaped", "lower", "upper", "filter", "test", "not defined", "== 3", "!= 3",
)
TESTS = tuple(t for t in TESTS if not t.startswith(("==", "!=")))
BINARY = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or")
SLICES = ("0", "-1", "1", "9", "1:", ":2", "-2:", "::2", "::-1", "1:-1", ":-9", "5:1:-2", "none:2", "'b'", "'upper'", "'nope'", "n", "s")


class Random:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, of):
        return self.random.choice(of)

    def atom(self):
        pick = self.random.random()
        if pick < 0.6:
            return self.one(list(NAMES) + ["nope"])
        if pick < 0.7:
            return self.one(["1", "0", "2", "10", "-1", "1.0", "0.1", "1e3", "1e20", "1_000", "0x1f", "0b101", "100000"])
        if pick < 0.85:
            return self.one(["'a'", "\"b\"", "'{} and {}'", "'\\n\\t'", "'x' 'y'", "'\\u00e9'", "'1,2,3'", "'{0} {0}'", "'{} {0}'", "'{a}'"])
        return self.one(["[]", "[1, 'b']", "(1, 2)", "(1,)", "()", "{'k': 1}", "{}", "[[1], [2]]", "range(3)", "range(1, 9, 3)", "dict(a=1)", "{1: 'one', 2.5: none}", "d.items()", "d.keys()", "d.values()|list", "true", "none", "namespace(a=1).a"])

    def expression(self, depth):
        if depth == 0:
            return self.atom()
        pick = self.random.random()
        inner = lambda: self.expression(depth - 1)
        if pick < 0.30:
            return f"({inner()} {self.one(BINARY)} {inner()})"
        if pick < 0.50:
            return f"({inner()})|{self.one(FILTERS)}"
        if pick < 0.60:
            return f"({inner()} is {self.one(TESTS)})"
        if pick < 0.70:
            # Slicing a constant number gives nothing, slicing a variable an error: Jinja folds
            # constants by other rules than it runs by. That one is not followed.
            of = inner()
            if not re.search(r"\b(nope|" + "|".join(NAMES) + r")\b", re.sub(r"'[^']*'", "", of)):
                of = self.one(list(NAMES))
            return f"({of})[{self.one(SLICES)}]"
        if pick < 0.80:
            return f"({inner()}).{self.one(METHODS_OF_TEXT)}"
        if pick < 0.84:
            return f"({inner()} if {inner()} else {inner()})"
        if pick < 0.86:
            return f"({inner()} if {inner()})"
        if pick < 0.90:
            return f"({self.one(['not ', '-', '+'])}{inner()})"
        if pick < 0.93:
            return f"({inner()} < {inner()} <= {inner()})"
        if pick < 0.96:
            return f"[{inner()}, {inner()}]"
        if pick < 0.98:
            return f"({inner()}).{self.one(['replace(s, %r).format(1, 2)' % '{} and {{{1}}}', 'replace(%r, %r).format(s, a=n)' % ('o', '{a}{0}'), 'format()', 'get(%r)' % 'b', 'get(%r, 0)' % 'q', 'items()|list', 'keys()|list', 'copy()', 'index(1)', 'count(1)'])}"
        return f"({inner()} ~ {inner()} ~ {inner()})"

    def space(self):
        return self.one(["", "", "\n", "  \n", " ", "\n\n  ", "text", "\t"])

    def tag(self, inside):
        return "{%" + self.one(["", "", "-", "+"]) + f" {inside} " + self.one(["", "", "-", "+"]) + "%}"

    def output(self, depth):
        return "{{" + self.one(["", "", "-"]) + f" {self.expression(depth)} " + self.one(["", "", "-"]) + "}}"

    def body(self, depth, in_loop=False):
        return "".join(self.statement(depth, in_loop) for _ in range(self.random.randint(1, 3)))

    def statement(self, depth, in_loop=False):
        pick = self.random.random()
        pad = self.space
        if depth == 0 or pick < 0.25:
            return pad() + self.output(1) + pad()
        if pick < 0.45:
            over = self.one(["xs", "ss", "es", "ps", "d", "d.items()", "range(4)", "s[:4]", "nope", "mix", "xs|select('>', 1)", "ps|map(attribute='age')"])
            var = "k, v" if over == "d.items()" else "x"
            if self.random.random() < 0.3:
                over += self.one([" if x", " if x is defined", " if loop is not defined"]) if var == "x" else " if v"
            extra = self.one([
                "{{ loop.index }}", "{{ loop.last }}", "{{ loop.length }}{{ loop.revindex }}", "{{ loop.previtem }}",
                "{{ loop.nextitem }}", "{{ loop.first }}", "{{ loop.cycle('a', 'b') }}", "{{ loop.index0 }}",
                "{{ loop.changed(1) }}", "", "{% if loop.index > 2 %}{% break %}{% endif %}",
                "{% if loop.first %}{% continue %}{% endif %}", "{{ x }}", "{% set c = c|default(0) + 1 %}{{ c }}",
                "{% set ns.c = ns.c + 1 %}", "{{ loop.revindex0 }}{{ loop.depth }}",
            ])
            otherwise = self.tag("else") + self.body(depth - 1) if self.random.random() < 0.3 else ""
            return pad() + self.tag(f"for {var} in {over}") + extra + self.body(depth - 1, True) + otherwise + self.tag("endfor") + pad()
        if pick < 0.65:
            parts = self.tag(f"if {self.expression(1)}") + self.body(depth - 1)
            if self.random.random() < 0.4:
                parts += self.tag(f"elif {self.expression(1)}") + self.body(depth - 1)
            if self.random.random() < 0.5:
                parts += self.tag("else") + self.body(depth - 1)
            return pad() + parts + self.tag("endif") + pad()
        if pick < 0.75:
            # Not a variable's name: read inside a loop and set behind it, it is undefined in the
            # loop to Jinja, which is not followed.
            name = self.one(["a", "b", "ns.c", "a, b"])
            value = "(1, 2)" if name == "a, b" else self.expression(1)
            return pad() + self.tag(f"set {name} = {value}") + pad() + "{{ a }}"
        if pick < 0.80:
            return pad() + self.tag("set a") + self.body(depth - 1) + self.tag("endset") + "{{ a|upper }}"
        if pick < 0.86:
            return (
                self.tag("macro mac(p, r=n, z='zz')") + "{{ p }}{{ r }}{{ z }}" + self.body(depth - 1)
                + self.tag("endmacro") + self.one(["{{ mac(1) }}", "{{ mac(1, 2, 3) }}", "{{ mac(z=1, p=s) }}", "{{ mac() }}", "{{ mac(1)|upper }}"])
            )
        if pick < 0.90:
            return self.tag("filter upper") + self.body(depth - 1) + self.tag("endfilter")
        if pick < 0.94:
            return self.tag(f"with a = {self.expression(1)}, k = 2") + "{{ a }}{{ k }}" + self.body(depth - 1) + self.tag("endwith") + "{{ a }}"
        if pick < 0.96:
            return pad() + "{#" + self.one(["", "-", "+"]) + " c " + self.one(["", "-", "+"]) + "#}" + pad()
        if pick < 0.98:
            return self.tag("generation") + self.body(depth - 1) + self.tag("endgeneration")
        return self.tag("raw") + "{{ x }}{% y %}" + self.tag("endraw")


def random_cases(seed, count):
    r = Random(seed)
    for i in range(count):
        if i % 3:
            source = "{{ " + r.expression(r.random.randint(1, 3)) + " }}"
        else:
            source = "{% set ns = namespace(c=0) %}" + r.body(3) + "{{ ns.c }}"
        yield f"{seed}/{i}", source, NAMES


# Where this library is known to differ, and the test would compare nothing (template.h).
def is_comparable(source, result):
    text = result.get("text", "")
    if "generator object" in text or " at 0x" in text or "built-in method" in text:
        return False
    if "reverseiterator" in text or "<Namespace" in text or "<function " in text:
        return False
    text = text.replace(str(WEATHER["function"]["parameters"]["properties"]["days"]["maximum"]), "")
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return all(len(run) < 19 for run in digits)


def write(path, cases):
    kept = 0
    last = {}
    with open(path, "w", encoding="utf-8") as out:
        for name, source, variables in cases:
            result = expected(source, variables)
            if not is_comparable(source, result):
                continue
            line = {"name": name, "source": source, "variables": variables, **result}
            short = {k: v for k, v in line.items() if k in ("text", "name", "error", "raised") or last.get(k) != v}
            last = line
            out.write(json.dumps(short, ensure_ascii=False) + "\n")
            kept += 1
    print(f"{path.name}: {kept} cases")


def compare(program, cases):
    """Both on the same cases; prints what differs."""
    cases = list(cases)
    lines = "".join(json.dumps({"source": s, "variables": v}) + "\n" for _, s, v in cases)
    ran = subprocess.run([program], input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    if ran.returncode != 0 or len(answers) != len(cases):
        sys.exit(f"{program} ended with {ran.returncode} after {len(answers)} of {len(cases)}: {ran.stderr}")
    different = num_texts = 0
    for (name, source, variables), answer in zip(cases, answers):
        result = expected(source, variables)
        if not is_comparable(source, result):
            continue
        num_texts += "text" in result
        same = answer.get("text") == result.get("text")
        if same and result.get("raised"):
            same = answer["error"] == result["error"]
        if not same:
            different += 1
            if different <= 40:
                print(f"--- {name}\n{source}\nreference: {result}\nhere:      {answer}")
    print(f"{len(cases)} cases, {num_texts} with a text, {different} different")
    return different


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compare", metavar="PROGRAM")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("templates", nargs="*", type=pathlib.Path, help="with --compare: also these")
    args = parser.parse_args()
    if args.compare:
        cases = list(random_cases(args.seed, args.count))
        for path in args.templates:
            cases += chat_cases(path.stem, path.read_text(encoding="utf-8"))
        sys.exit(1 if compare(args.compare, cases) else 0)
    for path in sorted((OUT / "templates").glob("*.jinja")):
        write(OUT / f"{path.stem}.jsonl", chat_cases(path.stem, path.read_text(encoding="utf-8")))
    write(OUT / "expressions.jsonl", random_cases(args.seed, args.count))


if __name__ == "__main__":
    main()
