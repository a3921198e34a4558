"""A class has at most 500 lines in all its files (docs/style.md, section 1): those of its declaration and of its functions."""

import collections
import re
from pathlib import Path

from functions import blocks_with_heads, cpp_functions
from project import files, read

CLASS_LINES_MAX = 500
# Classes with more lines, each with its reason in its header ("Over 500 lines: ..."). Each may shrink and none may grow: new
# parts become classes of their own.
LARGER = {
    ("scheduler_proc", "Runner"): 661,
    ("tp_worker/model", "Engine"): 901,
    ("tp_worker/model", "Sampler"): 814,
}

_CLASS = re.compile(r"(?:template <.*> ?)?(?:class|struct)(?: \[\[\w+\]\])? (\w+)(?: final)?(?: : .*)? ?\{")
_MEMBER = re.compile(r"((?:\w+(?:<[^()]*>)?::)+)(?:~?\w+|operator\s*\S+)\s*\(")


def sizes_of(texts):
    """{(folder, class): lines} of {path: text}. A nested class counts in the outer one."""
    sizes = collections.Counter()
    for path, text in texts.items():
        folder = path.parent.as_posix()
        ends_at = 0
        for head, begin, end in blocks_with_heads(text):
            declared = _CLASS.match(head)
            if declared and begin > ends_at:
                sizes[folder, declared[1]] += end - begin + 1
                ends_at = end
        lines = text.split("\n")
        for function in cpp_functions(text):
            head = " ".join(line.strip() for line in lines[function.begin - 1 : function.begin + 5])
            member = _MEMBER.search(head.split("{")[0])
            if member:
                sizes[folder, re.sub("<.*", "", member[1].split("::")[0])] += function.num_lines
    return sizes


def sizes_of_the_project():
    product = [path for path in files(".h", ".cuh", ".cpp", ".cu") if path.parts[0] not in ("tests", "bench")]
    return sizes_of({path: read(path) for path in product})


def test_no_class_is_larger_than_it_may_be():
    sizes = sizes_of_the_project()
    wrong = [
        f"{'/'.join(key)} has {size} lines, more than {LARGER.get(key, CLASS_LINES_MAX)}: split it by its nouns"
        for key, size in sizes.items()
        if size > LARGER.get(key, CLASS_LINES_MAX)
    ]
    wrong += [
        f"{'/'.join(key)} has {sizes[key]} lines: take it off the list"
        for key in LARGER
        if sizes[key] <= CLASS_LINES_MAX
    ]
    assert not wrong, "\n".join(wrong)


def test_a_larger_class_has_its_reason_in_its_header():
    headers = {path: read(path) for path in files(".h")}
    for folder, name in LARGER:
        texts = [
            text
            for path, text in headers.items()
            if path.parent.as_posix() == folder and f"\nclass {name} {{\n" in text
        ]
        assert len(texts) == 1, (folder, name)
        assert f"\n// Over {CLASS_LINES_MAX} lines: " in texts[0].split("#pragma once")[0], (
            f"{folder}/{name}: say why in its header"
        )


def test_a_class_is_counted_over_its_files():
    texts = {
        Path(
            "room/a.h"
        ): "class A {\n  public:\n    int f();\n    struct B {\n        int c;\n    };\n};\nstruct C {\n    int d;\n};\n",
        Path("room/a.cpp"): "int A::f() {\n    return 1;\n}\n\nvoid A::B::g() {\n    h();\n}\n",
        Path("room/a_more.cpp"): "template <class T>\nT A::h() {\n    return 1;\n}\n",
        Path("other/a.cpp"): "void free() {\n    g();\n}\n",
    }
    assert sizes_of(texts) == {("room", "A"): 7 + 3 + 3 + 3, ("room", "C"): 3}


def test_the_projects_classes_are_found():
    assert len([size for size in sizes_of_the_project().values() if size > 100]) > 100
