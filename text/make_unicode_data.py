#!/usr/bin/env python3
"""Writes unicode_data.inc: the character data that the reference implementation of tokenizer.json uses.

The reference (Hugging Face `tokenizers` 0.23, PyPI) mixes Unicode versions: its regular expressions know Unicode 16,
its normalization forms Unicode 9, its punctuation Unicode 8. So the data comes from the reference itself, code point by
code point, and not from one version of Unicode. Perl knows which code points Unicode 9 had.

usage: python3 make_unicode_data.py > unicode_data.inc     (needs `pip install tokenizers==0.23.*` and perl)
"""

import subprocess

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
SCRIPTS = (
    "Latin Greek Cyrillic Armenian Hebrew Arabic Devanagari Bengali Tamil Telugu Thai Lao Tibetan Myanmar Khmer "
    "Georgian Ethiopic Mongolian Hangul Hiragana Katakana Bopomofo Han Common Inherited"
).split()


def blocks(size):
    for i in range(0, len(CODE_POINTS), size):
        yield CODE_POINTS[i : i + size]


def removed_by(pre_tokenizer):
    """Returns the code points that a pre-tokenizer with behaviour Removed removes."""
    out = set()
    for block in blocks(4096):
        kept = set()
        for piece, _ in pre_tokenizer.pre_tokenize_str("".join(map(chr, block))):
            kept.update(map(ord, piece))
        out.update(c for c in block if c not in kept)
    return out


def matching(pattern):
    return removed_by(pre_tokenizers.Split(Regex(pattern), "removed"))


def isolated_by(pre_tokenizer):
    """Returns the code points that are separated from neighbouring letters."""
    out = set()
    for block in blocks(2048):
        pieces = pre_tokenizer.pre_tokenize_str("a" + "a".join(map(chr, block)) + "a")
        out.update(ord(piece) for piece, _ in pieces if len(piece) == 1)
    return out - {ord("a")}


def joined_by(pre_tokenizer, apart):
    """Returns the code points that form one piece with a preceding letter."""
    out = set()
    for block in blocks(2048):
        text = " ".join("a" + chr(c) for c in block if c not in apart)
        out.update(ord(piece[1]) for piece, _ in pre_tokenizer.pre_tokenize_str(text) if len(piece) == 2)
    return out


def ranges(code_points):
    out = []
    for c in sorted(code_points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def write_array(name, comment, kind, items):
    print(f"// {comment}\nconstexpr {kind} {name}[] = {{")
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line)
            line = "   "
        line += f" {item},"
    print(line + "\n};\n")


def write_ranges(name, comment, code_points):
    write_array(name, comment, "CodePointRange", [f"{{0x{a:x}, 0x{b:x}}}" for a, b in ranges(code_points)])


def lowercase_runs():
    """Returns (first, last, stride, delta) of code points whose lower case is a single other code point."""
    lower = normalizers.Lowercase()
    simple = {}
    for c in CODE_POINTS:
        text = lower.normalize_str(chr(c))
        if text == chr(c):
            continue
        if len(text) == 1:
            simple[c] = ord(text)
        else:
            assert (c, text) == (0x130, "i\u0307"), hex(c)  # unicode.cpp handles this code point
    runs = []
    for c in sorted(simple):
        delta = simple[c] - c
        if runs and runs[-1][3] == delta and c - runs[-1][1] in (1, 2):
            first, last, stride, _ = runs[-1]
            if first == last or c - last == stride:
                runs[-1] = [first, c, c - last, delta]
                continue
        runs.append([c, c, 1, delta])
    return runs


def nfc_sensitive(in_unicode_9):
    """Returns the code points that NFC may affect: they change, move, or join the preceding code point."""
    nfc = normalizers.NFC()
    out = set()
    composites = {}
    nfd = normalizers.NFD()
    for c in CODE_POINTS:
        if nfc.normalize_str(chr(c)) != chr(c):
            out.add(c)
        # A code point that moves past a mark of class 1 or of class 240 has a combining class.
        for text in ("a" + chr(c) + "\u0334", "a\u0345" + chr(c)):
            result = nfc.normalize_str(text)
            if result != text and not (result[:-1] == "a" and nfc.normalize_str(chr(c)) != chr(c)):
                if result[0] != "a" or result == text[0] + text[2] + text[1]:
                    out.add(c)
        parts = nfd.normalize_str(chr(c))
        if len(parts) >= 2:
            composites[c] = parts
    for c, parts in composites.items():
        if nfc.normalize_str(parts) == chr(c):  # composition does not exclude the code point
            out.add(ord(parts[-1]))
    return out & in_unicode_9


def code_points_of_unicode_9():
    program = (
        "no warnings; for (0..0x10ffff) { next if $_ >= 0xd800 && $_ < 0xe000; "
        'print "$_\\n" if chr($_) =~ /\\p{Present_In: 9.0}/ }'
    )
    done = subprocess.run(["perl", "-e", program], capture_output=True, text=True, check=True)
    return set(map(int, done.stdout.split()))


def main():
    category_of = {}
    for name in CATEGORIES:
        for c in matching(r"\p{%s}" % name):
            category_of[c] = name
    for c in range(0xD800, 0xE000):
        category_of[c] = "Cs"
    white_space = matching(r"\s")
    in_unicode_9 = code_points_of_unicode_9()
    print(
        "// Made by make_unicode_data.py from what the reference implementation does "
        f"(tokenizers {tokenizers.__version__}).\n// Included by unicode.cpp alone.\n"
    )
    starts = []
    for c in range(0x110000):
        if not starts or starts[-1][1] != category_of[c]:
            starts.append((c, category_of[c]))
    write_array(
        "kCategoryRuns",
        "Where a run of code points of one general category begins (Unicode 16): code point * 32 + category.",
        "std::uint32_t",
        [f"0x{c * 32 + (CATEGORIES + ['Cs']).index(name):x}" for c, name in starts],
    )
    write_ranges("kAlphabetic", "The derived property Alphabetic (Unicode 16).", matching(r"\p{Alphabetic}"))
    write_ranges("kOnigurumaPunct", "What [[:punct:]] matches.", matching("[[:punct:]]"))
    write_ranges(
        "kNumeric",
        "Rust's char::is_numeric (the pre-tokenizer Digits).",
        isolated_by(pre_tokenizers.Digits(individual_digits=True)),
    )
    write_ranges(
        "kPunctuation",
        "The pre-tokenizer Punctuation (Unicode 8).",
        isolated_by(pre_tokenizers.Punctuation("isolated")),
    )
    write_ranges(
        "kWord",
        r"\w of the Rust crate regex (the pre-tokenizer Whitespace, and single_word).",
        joined_by(pre_tokenizers.Whitespace(), white_space),
    )
    strip = normalizers.StripAccents()
    write_ranges(
        "kCombiningMarks",
        "The normalizer StripAccents (Unicode 9).",
        {c for c in CODE_POINTS if strip.normalize_str("a" + chr(c)) == "a"},
    )
    write_ranges(
        "kNotInUnicode9",
        "Code points that the normalization forms leave alone, as unassigned.",
        set(CODE_POINTS) - in_unicode_9,
    )
    write_ranges(
        "kNfcSensitive",
        "Code points that NFC changes, moves, or joins to what is before them (Unicode 9).",
        nfc_sensitive(in_unicode_9),
    )
    write_array(
        "kLowercaseRuns",
        "Lower case: first, last, stride, and what is added.",
        "LowercaseRun",
        [f"{{0x{a:x}, 0x{b:x}, {s}, {d}}}" for a, b, s, d in lowercase_runs()],
    )
    for name in SCRIPTS:
        write_ranges("kScript" + name, f"The script {name} (Unicode 16).", matching(r"\p{%s}" % name))


main()
