"""Finds the forms of co_await that GCC 12 compiles wrongly. coroutine_faults/ has a program of each.

Inside ?:, && and ||, GCC 12 always evaluates the awaited call if the expression is an argument, a
condition of ?: or a loop's condition: `up && co_await ready(x) ? 200 : 503` calls ready(x) even if
`up` is false.

In the condition of a statement, in a function that declares no variable, the awaited object gets no
place in the coroutine's frame: nothing runs, or the process dies.

Braces that make an aggregate in an expression with co_await have its members destroyed twice. If
all of them are numbers, enums and references, nothing is destroyed.
"""

import functools
import re

OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = {closing: opening for opening, closing in OPENING.items()}
CHOICES = {"?", "&&", "||", "and", "or"}
# Comments and literals first, then tokens.
SKIPPED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|&&|\|\||::|->|[^\s\w]")
# Template arguments, innermost first: their commas separate no function's arguments.
ARGUMENTS = re.compile(r"(?<=[\w>])<(?:(?!&&|\bco_await\b)[\w\s:,*&])*>")
HEADERS = {"if", "while", "switch", "for", "constexpr"}
# Words before a name or a brace that are neither a type nor a name.
NO_TYPE = set(
    "return co_return co_await co_yield else do case goto new delete throw using typedef operator".split()
) | set("not and or sizeof struct class enum namespace template typename const static constexpr".split())
DECLARATION = re.compile(
    r"(?:(?:static|constexpr|const) )*(\w+)(?: :: \w+)*(?: const)?(?: &&| [&*])*(?: const)? (\w+ (?=[=({;:])|\[)"
)
WORDS_MAX = 16  # of a declaration, up to its value
# Types that have nothing to destroy.
PLAIN = r"bool|char|int|unsigned|long|float|double|size_t|u?int\d+_t|string_view|coroutine_handle"


def _blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


@functools.cache
def _tokens(text):
    """[(token, line)] of the code alone; literals are removed, as their place does not matter here."""
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
    # `-> Task<> {` of a lambda: goes back over the type's name.
    at = brace - 1
    while at > 0 and re.fullmatch(r"\w+|::|>|<|\*|&", tokens[at][0]):
        at -= 1
    return tokens[at][0] == "->"


def _brackets(tokens):
    """The partner of each bracket, and for each token the bracket around it."""
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
    """Whether the token chooses between expressions. In `auto&&` it declares a reference."""
    return tokens[at][0] in CHOICES and not (tokens[at][0] == "&&" and tokens[at - 1][0] == "auto")


def _has_choice_beside(tokens, partner, at, step, ends):
    """Whether a choice operator lies between `at` and the expression's end in the direction `step`, outside of other
    brackets."""
    while 0 <= at < len(tokens) and tokens[at][0] not in ends:
        token = tokens[at][0]
        if token in OPENING or token in CLOSING:
            opening = min(at, partner.get(at, at))
            is_left = (token in OPENING) == (step < 0)  # true at the bracket that encloses the expression
            if is_left or at not in partner or _is_block(tokens, opening):
                return False
            at = partner[at]
        elif _is_choice(tokens, at):
            return True
        at += step
    return False


def choices_with_co_await(text):
    """The lines of every co_await inside ?:, && or ||, at whatever depth."""
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
            # Commas separate arguments; in a statement that operator is rare, and a comma more
            # likely belongs to a template.
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


def _is_function(tokens, partner, brace):
    """Whether a bracket opens the body of a function or of a lambda."""
    if not _is_block(tokens, brace) or tokens[brace - 1][0] in {";", "{", "}", ":", "else", "do", "try"}:
        return False
    closing = brace - 1
    return tokens[closing][0] != ")" or tokens[partner[closing] - 1][0] not in HEADERS | {"catch"}


def _function_around(tokens, partner, around, at):
    """The bracket of the innermost function around `at`."""
    while at is not None and not _is_function(tokens, partner, at):
        at = around[at]
    return at


def _declares_a_variable(tokens, partner, brace):
    """A lambda's own variables are not the function's."""
    at = brace + 1
    while at < partner[brace]:
        if _is_function(tokens, partner, at):
            at = partner[at]
        elif tokens[at - 1][0] in {";", "{", "}", "(", ")", ":"}:
            # A type, a name, and the token that begins the value or ends the declaration: `const auto& name =`.
            words = " ".join(token for token, _ in tokens[at : at + WORDS_MAX])
            if (found := DECLARATION.match(words)) and found[1] not in NO_TYPE and found[2].strip() not in NO_TYPE:
                return True
        at += 1
    return False


def conditions_with_co_await(text):
    """The lines of every co_await in the condition of a statement, in a function that declares no variable."""
    tokens = _tokens(text)
    partner, around = _brackets(tokens)
    wrong = []
    for at, (token, line) in enumerate(tokens):
        outer = around[at]
        while token == "co_await" and outer is not None and not _is_block(tokens, outer):
            if tokens[outer][0] == "(" and tokens[outer - 1][0] in HEADERS:
                function = _function_around(tokens, partner, around, at)
                if function is not None and not _declares_a_variable(tokens, partner, function):
                    wrong.append(line)
                break
            outer = around[outer]
    return wrong


def _expression_around(tokens, partner, around, at):
    """[begin, end) of the whole expression: a statement, or the brackets of its header."""
    while (outer := around[at]) is not None and not _is_block(tokens, outer):
        if tokens[outer - 1][0] in HEADERS:
            break
        at = outer
    begin = end = at
    while begin > 0 and tokens[begin - 1][0] != ";":
        before = partner.get(begin - 1, begin - 1)
        if before > begin - 1 or _is_block(tokens, before) or tokens[before - 1][0] in HEADERS:
            break
        begin = before
    while end < len(tokens) and tokens[end][0] != ";":
        if tokens[end][0] in CLOSING or _is_block(tokens, end):
            break
        end = partner.get(end, end) + 1
    return begin, end


def _made_by(tokens, around, brace):
    """The type of the value that braces make. Braces without a type's name have the name of the call that they are an
    argument of, as `call()`."""
    before = [token for token, _ in tokens[max(brace - 3, 0) : brace]]
    if not re.fullmatch(r"[A-Za-z_]\w*", before[-1]) or before[-1] in NO_TYPE:
        call = around[brace]
        return f"{tokens[call - 1][0]}()" if call is not None and tokens[call][0] == "(" else "{}"
    if before[-2] == "::":
        return "::".join([before[-3], before[-1]])
    # `Type name{...}`: the first of the two is the type.
    is_declared = re.fullmatch(r"[A-Za-z_]\w*", before[-2]) and before[-2] not in NO_TYPE
    return before[-2] if is_declared else before[-1]


def braces_with_co_await(text):
    """[(line, the type)] of all braces that make a value in an expression with co_await (`_made_by`)."""
    tokens = _tokens(text)
    partner, around = _brackets(tokens)
    made = {}
    for at, (token, _) in enumerate(tokens):
        if token != "co_await":
            continue
        begin, end = _expression_around(tokens, partner, around, at)
        while begin < end:
            if _is_block(tokens, begin):  # a lambda's body, whose statements are not part of this expression
                begin = partner[begin]
            elif tokens[begin][0] == "{":
                made[begin] = (tokens[begin][1], _made_by(tokens, around, begin))
            begin += 1
    return [made[brace] for brace in sorted(made)]


def is_destroyed_as_nothing(name, texts):
    """Whether every type of this name in `texts` has a constructor, or members that need no destructor."""
    found = [text for text in texts if re.search(rf"\b(struct|class|enum)\b[^;{{]*\b{name}\b", text)]
    types = [defined for text in found for defined in _definitions(text, name)]
    return bool(types) and all(_needs_no_destructor(*defined, texts) for defined in types)


def _definitions(text, name):
    """(its head's words, tokens, partner, brace) of each definition of this name."""
    tokens = _tokens(text)
    partner, _ = _brackets(tokens)
    for at, (token, _) in enumerate(tokens):
        if token not in {"struct", "class", "enum"} or tokens[at - 1][0] == "enum":
            continue
        brace = at
        while brace < len(tokens) and tokens[brace][0] not in {"{", ";", "(", ")", "=", ","}:
            brace += 1
        words = [word for word, _ in tokens[at:brace]]
        named = words[: words.index(":")] if ":" in words else words
        if brace < len(tokens) and tokens[brace][0] == "{" and name in (named[-1], named[-2]):
            yield words, tokens, partner, brace


def _needs_no_destructor(words, tokens, partner, brace, texts):
    if words[0] == "enum":
        return True
    at, member, is_plain = brace + 1, [], ":" not in words  # a base class, whose members are unknown here
    while at < partner[brace]:
        token = tokens[at][0]
        if token in words[1:] and tokens[at + 1][0] == "(" and tokens[at - 1][0] != "~":
            return True  # a constructor: no aggregate
        if token == "{":
            if _is_block(tokens, at):
                member = []
            at = partner[at]
        elif token == ";":
            is_plain = is_plain and (not member or _is_plain(member, texts))
            member = []
        else:
            member.append(token)
        at += 1
    return is_plain


def _is_plain(member, texts):
    """Whether a member of a struct, or another declaration in it, has nothing to destroy."""
    if {"(", "static", "using", "struct", "enum", "class", "&", "*"} & set(member):
        return True
    member = [token for token in member[: (member + ["="]).index("=")] if token not in {"const", "mutable"}]
    kind = member[-2] if len(member) > 1 else ""
    return bool(re.fullmatch(PLAIN, kind)) or is_destroyed_as_nothing(kind, texts)
