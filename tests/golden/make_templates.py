#!/usr/bin/env python3
"""Makes tests/data/jinja/: what the Python reference renders, for tests/jinja.

The reference is Jinja in the environment that transformers' chat_template_utils.py sets up, written
out here, so that neither torch nor transformers is needed. Made with Jinja 3.1.6, MarkupSafe 3.0.3,
Python 3.11.7; `--compare PROGRAM` runs fresh random cases against a built pitstop_render_template.

  NAME.jsonl         templates/NAME.jinja on many conversations
  expressions.jsonl  random expressions and statements

A case without a source or without variables has those of the previous case.
"""

import argparse
import copy
import datetime
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

from random_templates import random_cases

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parent / "data" / "jinja"
# The time that strftime_now sees, here and in the tests (tests/jinja/reference_time.h).
NOW = datetime.datetime(2026, 3, 14, 15, 9, 26)


class Generation(jinja2.ext.Extension):
    """{% generation %}: leaves the text unchanged, as AssistantTracker does."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """transformers' environment, with an error for text % values: no known template uses it."""

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
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


ENV = environment()


def expected(source, variables):
    """{"text": ...}, or {"error": ..., "raised": whether the template raised it}."""
    try:
        # A copy: `indent` of a list changes that very list before it fails.
        return {"text": ENV.from_string(source).render(**copy.deepcopy(variables))}
    except jinja2.exceptions.TemplateSyntaxError as error:
        return {"error": str(error), "raised": False}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error), "raised": raised}
    except Exception as error:  # mistakes of templates raise Python's own errors
        return {"error": f"{type(error).__name__}: {error}", "raised": False}


# ---- conversations ----

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Wetter für einen Ort \u2014 "now" & <later>',
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
        tool('{"temp": 21.5}'),
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
        assistant("", tool_calls=[tool_call("get_weather", '{"city": "Bonn"}')]),
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
    "parts": [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}]}],
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

# The other variables that from_pretrained passes: the special tokens.
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
                yield (
                    f"{name}/{title}/{len(tools or [])}/{prompt}",
                    source,
                    variables_of(messages, tools=tools, add_generation_prompt=prompt),
                )
    for thinking in (False, True):
        yield (
            f"{name}/enable_thinking/{thinking}",
            source,
            variables_of(CONVERSATIONS["thinking"], add_generation_prompt=True, enable_thinking=thinking),
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
        yield (
            f"{name}/{next(iter(more))}",
            source,
            variables_of(CONVERSATIONS["turns"], add_generation_prompt=True, **{"tools": [WEATHER], **more}),
        )


# Known differences of this library (template.h): such cases are left out.
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
    """Renders the cases by Jinja and by `program`; prints the differences."""
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
