"""Texts that no file of the project may contain."""

import re

from project import files, read

# In pieces, so that this file does not contain them either.
FORBIDDEN = {
    "a path of somebody's machine": re.compile("(?<![\\w.])/(wo" + "rk|ho" + "me|ro" + "ot)/[a-z]"),
    "where the work is planned": re.compile(r"\bis" + r"sue #?\d", re.IGNORECASE),
    "a registry": re.compile("(py" + "pi|cra" + "tes|docker" + r"\.io|gh" + r"cr\.io)\.(org|io)\b"),
}
TEXT = (".h", ".cpp", ".cu", ".cuh", ".py", ".md", ".txt", ".cmake", ".sh", ".json", ".yml", "")


def test_files_speak_of_the_project_alone():
    wrong = []
    for path in files(*TEXT):
        if path.parts[:2] in (("launch", "models"), ("tests", "data")) or path.name == "LICENSE":
            continue
        for number, line in enumerate(read(path).splitlines(), 1):
            for what, pattern in FORBIDDEN.items():
                if pattern.search(line):
                    wrong.append(f"{path}:{number}: {what}: {line.strip()[:80]}")
    assert not wrong, "\n".join(wrong)


def test_lines_end_without_spaces_and_files_with_a_newline():
    wrong = []
    for path in files(".h", ".cpp", ".cu", ".cuh", ".py", ".md", ".txt", ".cmake"):
        if path.parts[:2] == ("tests", "data"):
            continue
        text = read(path)
        if text and not text.endswith("\n"):
            wrong.append(f"{path}: no newline at the end")
        wrong += [
            f"{path}:{number}: a space at the end"
            for number, line in enumerate(text.splitlines(), 1)
            if line != line.rstrip() and path.suffix != ".md"
        ]
    assert not wrong, "\n".join(wrong)
