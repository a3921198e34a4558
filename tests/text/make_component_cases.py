#!/usr/bin/env python3
"""Writes component_cases.jsonl: small tokenizers, each around one component of tokenizer.json, and the
reference implementation's results for some texts.

The model's end_of_word_suffix makes the end of every piece visible in the ids.

usage: python3 make_component_cases.py > ../data/tokenizers/component_cases.jsonl   (needs `pip install tokenizers==0.23.*`)
"""

import json
import string

import tokenizers
from tokenizers import Tokenizer

CHARACTERS = [c for c in string.printable if c not in "\x0b\x0c"] + list(
    "éÉüßñçİıſKµ½²①٣०中文字日本語ｶﾊ한글▁Ġ\u0301\u00a0\u3000\u2028\u200b—«»…€±😀👍"
)
BYTE_CHARACTERS = [chr(c) for c in list(range(0xA1, 0xAD)) + list(range(0xAE, 0x144))]


def model(**changes):
    vocab = {"<unk>": 0}
    for c in dict.fromkeys(CHARACTERS + BYTE_CHARACTERS):
        vocab[c] = len(vocab)
        vocab[c + "</w>"] = len(vocab)
    out = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": "</w>",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": [],
    }
    out.update(changes)
    return out


def words(extra=(), merges=(), **changes):
    """A model without a suffix, with some words."""
    vocab = {"<unk>": 0}
    for token in [
        "a",
        "b",
        "c",
        "d",
        "e",
        "▁",
        " ",
        ".",
        "##a",
        "##b",
        "##c",
        "##ab",
        "ab",
        "abc",
        "bc",
        "aa",
        "cd",
        *extra,
    ]:
        vocab[token] = len(vocab)
    out = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "<unk>",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": list(merges),
    }
    out.update(changes)
    return out


def file(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, added=()):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def token(i, content, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False):
    return {
        "id": i,
        "content": content,
        "single_word": single_word,
        "lstrip": lstrip,
        "rstrip": rstrip,
        "normalized": normalized,
        "special": special,
    }


def split(pattern, behavior, invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(*items):
    return {"type": "Sequence", "pretokenizers": list(items)}


def normalizers(*items):
    return {"type": "Sequence", "normalizers": list(items)}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, split=True, replacement="▁"):
    return {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": split}


TEXTS = [
    "",
    " ",
    "a",
    "a b",
    " a  b ",
    "Hello, world!  12.5%",
    "aXbXXc",
    "XX",
    "XaX",
    "I'm you'LL it'ſ",
    "éÉ e\u0301 ß İ",
    "中文abc日本 ｶ",
    "tab\tnew\nline\r\n x",
    "1234567890",
    "a1b22c333",
    "½²①٣०",
    "▁a▁b",
    "a ▁ b",
    "—«x»…€±",
    "\u00a0a\u3000b\u2028c\u200bd",
    "😀a👍",
    "aaabbb",
    "ab ba",
    "...a..",
    "a\n\n\nb",
    "K k ſ s µ",
    " \n \n ",
]
PATTERNS = [
    r"X",
    r"\s+",
    r"\d",
    r"[0-9]+",
    r"\p{L}+",
    r"[^\s]+",
    r"\w+",
    r"\b",
    r"(?=X)",
    r"(?<=X)",
    r"X*",
    r"^",
    r"$",
    r"a|ab",
    r"ab|a",
    r"(?i:i\'LL|K)",
    r"[a-c&&b-z]",
    r"[^a-c&&[b-z]]",
    r"[[:punct:]]",
    r"[[:alpha:]]+",
    r"(?i)x",
    r"(?m:.)",
    r".",
    r"a{2}?",
    r"a{1,2}+",
    r"a{,2}",
    r"\h+",
    r"\R",
    r"(?>a+)b",
    r"a++b?",
    r"a*+",
    r"\s?+\p{L}++",
    r"\s++$",
    r"(?:a|b)+?",
    r"(a)(b)",
    r"(?<n>a)",
    r"\x{61}",
    r"\u0061",
    r"\p{^L}",
    r"\P{L}+",
    r"\p{Han}+",
    r"\S+(?!\S)",
    r"[\s\S]",
    r"[-a]",
    r"[a-]",
    r"[]a]",
    r"\A.",
    r".\z",
    r"a{x}",
    r"[^(\s|[.,!?…])]+",
    r"(?i:[^k])",
    r"(?-i:a)b",
    r"a(?i)B|c",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def cases():
    yield from cases_of_pre_tokenizers()
    yield from cases_of_normalizers()
    yield from cases_of_added_tokens()
    yield from cases_of_post_processors()
    yield from cases_of_bpe()
    yield from cases_of_decoders()
    yield from cases_of_byte_fallback()


def cases_of_pre_tokenizers():
    for behavior in BEHAVIORS:
        for invert in (False, True):
            yield file(model(), pre_tokenizer=split({"String": "X"}, behavior, invert))
            yield file(model(), pre_tokenizer=split({"Regex": r"[X\s]+"}, behavior, invert))
        yield file(model(), pre_tokenizer={"type": "Punctuation", "behavior": behavior})
        yield file(model(), pre_tokenizer=split({"Regex": r"(?=X)|\s"}, behavior))
    for pattern in PATTERNS:
        yield file(model(), pre_tokenizer=split({"Regex": pattern}, "Isolated"))
    for pre in [
        {"type": "Whitespace"},
        {"type": "WhitespaceSplit"},
        {"type": "BertPreTokenizer"},
        {"type": "Punctuation"},
        {"type": "Digits", "individual_digits": True},
        {"type": "Digits", "individual_digits": False},
        {"type": "CharDelimiterSplit", "delimiter": "X"},
        {"type": "FixedLength", "length": 3},
        {"type": "FixedLength"},
        byte_level(),
        byte_level(prefix=True),
        byte_level(prefix=True, regex=False),
        sequence(),
        sequence({"type": "WhitespaceSplit"}, byte_level(prefix=True)),
        sequence(byte_level(), {"type": "Digits", "individual_digits": True}),
        sequence({"type": "WhitespaceSplit"}, metaspace("first")),
        sequence({"type": "WhitespaceSplit"}, metaspace("always", False)),
        sequence(
            {"type": "Punctuation"},
            sequence({"type": "Digits", "individual_digits": False}, {"type": "WhitespaceSplit"}),
        ),
    ]:
        yield file(model(), pre_tokenizer=pre)
    for scheme in ("first", "never", "always"):
        for does_split in (False, True):
            yield file(model(), pre_tokenizer=metaspace(scheme, does_split), decoder=metaspace(scheme, does_split))
    yield file(
        model(),
        pre_tokenizer={"type": "Metaspace", "replacement": "_", "add_prefix_space": True},
        decoder={"type": "Metaspace", "replacement": "_", "add_prefix_space": True},
    )


def cases_of_normalizers():
    yield file(model(), {"type": "Strip", "strip_left": True, "strip_right": False}, metaspace("first"))
    yield file(model(), {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "X"}, metaspace("first"))
    for normalizer in [
        {"type": "NFC"},
        {"type": "NFD"},
        {"type": "NFKC"},
        {"type": "NFKD"},
        {"type": "Lowercase"},
        {"type": "StripAccents"},
        {"type": "Nmt"},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": r"\s{2,}"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "ab"}, "content": ""},
        {"type": "ByteLevel"},
        normalizers(),
        normalizers({"type": "NFD"}, {"type": "StripAccents"}, normalizers({"type": "Lowercase"})),
        normalizers(
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        ),
    ]:
        yield file(model(), normalizer)


def cases_of_added_tokens():
    n = len(model()["vocab"])
    added = [
        token(n, "<s>"),
        token(n + 1, "ab", special=False),
        token(n + 2, " X", lstrip=True),
        token(n + 3, "c", rstrip=True, single_word=True),
        token(n + 4, "...", special=False, lstrip=True, rstrip=True),
        token(n + 5, "abb", special=False),
    ]
    yield file(model(), added=added)
    yield file(
        model(),
        {"type": "Lowercase"},
        {"type": "WhitespaceSplit"},
        added=[
            token(n, "Hello", normalized=True),
            token(n + 1, "WORLD", normalized=True, special=False),
            token(n + 2, "É"),
        ],
    )
    yield file(
        model(),
        normalizers(
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        ),
        added=[token(n, "ab", normalized=True), token(n + 1, "X", normalized=False)],
    )


def cases_of_post_processors():
    for post in [
        {"type": "BertProcessing", "sep": ["X", 5], "cls": ["a", 7]},
        {
            "type": "RobertaProcessing",
            "sep": ["X", 5],
            "cls": ["a", 7],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        {
            "type": "Sequence",
            "processors": [
                byte_level(),
                {
                    "type": "TemplateProcessing",
                    "single": [
                        {"SpecialToken": {"id": "x", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "y", "type_id": 0}},
                    ],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                    "special_tokens": {
                        "x": {"id": "x", "ids": [3, 4], "tokens": ["p", "q"]},
                        "y": {"id": "y", "ids": [], "tokens": []},
                    },
                },
            ],
        },
    ]:
        yield file(model(), post_processor=post)


def cases_of_bpe():
    abc = ["a b", "ab c", "a a"]
    for changes in [
        {},
        {"unk_token": None},
        {"fuse_unk": True},
        {"continuing_subword_prefix": "##"},
        {"ignore_merges": True},
        {"byte_fallback": True},
        {"byte_fallback": True, "fuse_unk": True},
    ]:
        merges = ["a ##b", "##a ##b"] if "continuing_subword_prefix" in changes else abc
        yield file(words(merges=merges, **changes), pre_tokenizer={"type": "WhitespaceSplit"})
    yield file(
        words(
            extra=[f"<0x{b:02X}>" for b in range(256) if b != 0x8D],
            merges=[["a", "b"], ["ab", "c"]],
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    yield file(
        words(extra=["c▁", "▁a", "▁▁"], merges=["▁ a", "▁ ▁", "a a"], fuse_unk=True),
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    )


def cases_of_decoders():
    suffixed = words(
        extra=["a</w>", "b</w>", "ab</w>", "a  b", "x", "|", "<pad>", " do not", "'s", "##."],
        merges=["a b</w>"],
        end_of_word_suffix="</w>",
    )
    for decoder in [
        None,
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Fuse"},
        byte_level(),
        {"type": "Strip", "content": "a", "start": 1, "stop": 0},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "XY"},
        {"type": "Replace", "pattern": {"Regex": "[ab]+"}, "content": "-"},
        {
            "type": "Sequence",
            "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "ab"}, "content": "-"}],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                {"type": "Replace", "pattern": {"Regex": "^a|b$"}, "content": "-"},
                {"type": "Strip", "content": "-", "start": 2, "stop": 0},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                metaspace("always"),
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "WordPiece", "prefix": "##", "cleanup": True}]},
    ]:
        yield file(suffixed, pre_tokenizer={"type": "WhitespaceSplit"}, decoder=decoder)


def cases_of_byte_fallback():
    fallback = words(extra=[f"<0x{b:02X}>" for b in range(256)], byte_fallback=True)
    for decoder in [
        {"type": "ByteFallback"},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 2, "stop": 0},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
    ]:
        yield file(fallback, decoder=decoder)


def main():
    models = []  # shared ones are written once
    for case in cases():
        text = json.dumps(case, ensure_ascii=False)
        tok = Tokenizer.from_str(text)
        done = []
        for t in TEXTS:
            encoded = tok.encode(t, add_special_tokens=False).ids
            special = tok.encode(t).ids
            # BPEDecoder panics on no tokens at all.
            decoded = tok.decode(encoded, skip_special_tokens=False) if encoded else ""
            done.append(
                {
                    "text": t,
                    "ids": encoded,
                    "ids_special": special if special != encoded else None,
                    "decoded": decoded if case["decoder"] else None,
                    "decoded_none": decoded if not case["decoder"] and len(encoded) < 4 else None,
                }
            )
        if case["model"] not in models:
            models.append(case["model"])
            print(json.dumps({"model": case["model"]}, ensure_ascii=False))
        case["model"] = models.index(case["model"])
        print(
            json.dumps(
                {"file": case, "texts": [{k: v for k, v in d.items() if v is not None} for d in done]},
                ensure_ascii=False,
                separators=(",", ":"),
            )
        )


assert tokenizers.__version__.startswith("0.23"), tokenizers.__version__
main()
