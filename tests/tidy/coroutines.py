"""Finds co_await inside ?:, && and ||, which GCC 12 compiles wrongly.

It evaluates the awaited call always where the expression is an argument, a condition of ?: or a loop's
condition: `up && co_await ready(x) ? 200 : 503` asks ready(x) also where `up` is false.
"""

import re

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {closing: opening for opening, closing in OPENING.items()}
CHOICES = {"?", "&&", "||", "and", "or"}
# Comments and literals, then what a token is.
SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|&&|\|\||::|->|[^\s\w]")
# Template arguments, innermost first: their commas part nothing.
ARGUMENTS = re.compile(r"(?<=[\w>])<(?:(?!&&|\bco_await\b)[\w\s:,*&])*>")
HEADERS = {"if", "while", "switch", "for", "constexpr"}


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def _tokens(text):
    """[(token, line)] of the code alone; a literal is gone, as its place says nothing here."""
    text = SKIPPED.sub(_blank, text)
    while (shorter := ARGUMENTS.sub(_blank, text)) != text:
        text = shorter
    found, line, last = [], 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", last, match.start())
        last = match.start()
        found.append((match.group(0), line))
    return found


def _is_block(tokens, brace):
    """Whether a bracket opens statements: not the members of a value, not arguments."""
    if tokens[brace][0] != "{":
        return False
    if brace == 0:
        return True
    before = tokens[brace - 1][0]
    if before in {")", ";", "{", "}", ":", "else", "do", "try", "mutable", "noexcept", "const"}:
        return True
    if before == "]":  # a lambda without parameters, or an array's members
        return True
    # `-> Task<> {` of a lambda: back over the type's name.
    at = brace - 1
    while at > 0 and re.fullmatch(r"\w+|::|>|<|\*|&", tokens[at][0]):
        at -= 1
    return tokens[at][0] == "->"


def _brackets(tokens):
    """Where each bracket's partner is, and for each token the bracket that it stands in."""
    partner, around, open_at = {}, [], []
    for at, (token, _) in enumerate(tokens):
        if token in CLOSING and open_at:
            partner[at] = open_at.pop()
            partner[partner[at]] = at
        around.append(open_at[-1] if open_at else None)
        if token in OPENING:
            open_at.append(at)
    return partner, around


def _is_choice(tokens, at):
    """A choice of an expression; `auto&&` declares a reference."""
    return tokens[at][0] in CHOICES and not (tokens[at][0] == "&&" and tokens[at - 1][0] == "auto")


def _has_choice_beside(tokens, partner, at, step, ends):
    """From `at` in the direction of `step` to the end of the expression, inside no other bracket."""
    while 0 <= at < len(tokens) and tokens[at][0] not in ends:
        token = tokens[at][0]
        if token in OPENING or token in CLOSING:
            opening = min(at, partner.get(at, at))
            is_left = (token in OPENING) == (step < 0)  # the bracket around all of it
            if is_left or at not in partner or _is_block(tokens, opening):
                return False
            at = partner[at]
        elif _is_choice(tokens, at):
            return True
        at += step
    return False


def choices_with_co_await(text):
    """The lines of every co_await that stands, at whatever depth, inside ?:, && or ||."""
    tokens = _tokens(text)
    partner, around = _brackets(tokens)
    wrong = []
    for at, (token, line) in enumerate(tokens):
        if token != "co_await":
            continue
        here = at
        while True:
            outer = around[here]
            is_statement = outer is None or _is_block(tokens, outer)
            # Arguments are parted by commas; in a statement that operator is rare, and a comma more
            # likely one of a template.
            ends = {";"} if is_statement else {";", ","}
            if _has_choice_beside(tokens, partner, here - 1, -1, ends) or _has_choice_beside(
                tokens, partner, partner.get(here, here) + 1, 1, ends
            ):
                wrong.append(line)
                break
            if is_statement or tokens[outer - 1][0] in HEADERS:
                break
            here = outer
    return wrong
