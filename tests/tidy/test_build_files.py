"""Each folder's CMakeLists.txt says what the folder is, and lists every source of it."""

import re

from project import ROOT, files, read

FOLDERS = [path for path in files(".txt") if path.name == "CMakeLists.txt" and len(path.parts) > 1]


def test_a_folder_opens_with_what_it_is():
    wrong = [str(path) for path in FOLDERS if not re.match(r"# \w.*[.:]?\n", read(path) or "\n")]
    assert not wrong, wrong


def test_every_source_is_built():
    wrong = []
    # A folder's list may continue in *.cmake files of the same folder.
    lists = {path.parent: read(path) for path in FOLDERS}
    for path in files(".cmake"):
        if path.parent in lists:
            lists[path.parent] += read(path)
    for path in files(".cpp", ".cu"):
        if path.parent.name == "coroutine_faults":  # compiled by test_coroutines.py
            continue
        folder = next((parent for parent in path.parents if parent in lists), None)
        if folder is None:
            continue
        name = str(path.relative_to(folder))
        if not re.search(rf"(^|[\s/]){re.escape(name)}([\s)]|$)", lists[folder], re.MULTILINE):
            wrong.append(f"{path} is not in {folder}/CMakeLists.txt")
    assert not wrong, "\n".join(wrong)


def test_flags_for_all_targets_are_those_of_the_style_page():
    named = set(re.findall(r"`(-[\w-]+(?:=\w+)?)`", read("docs/style.md").split("## 10.")[1].split("## 11.")[0]))
    given = set()
    for path in (ROOT / "cmake").glob("*.cmake"):
        for options in re.findall(r"^ *add_compile_options\((.*)\)", path.read_text(), re.MULTILINE):
            given |= set(re.findall(r"(?<![\w-])--?[a-z][\w-]*(?:=[\w,]+)?", options))
    sanitizers = {flag for flag in given if "sanitize" in flag or flag == "-fno-omit-frame-pointer"}
    assert sanitizers and given - sanitizers == named, (given, named)


def test_there_are_no_globs_and_no_global_flags():
    wrong = [
        f"{path}: {match.group(0)}"
        for path in FOLDERS
        for match in re.finditer(
            r"(?m)^[^#\n]*\b(GLOB|GLOB_RECURSE|add_compile_options|"
            r"include_directories|link_libraries\s*\(\s*[a-z])",
            read(path),
        )
        if "target_" not in match.group(0)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_two_files_of_python_tests_have_one_name():
    """pytest imports a file outside a package by its name alone: of two files with one name, the second
    is an error.
    """
    folders = {}
    for path in files(".py"):
        is_in_package = (ROOT / path.parent / "__init__.py").exists()
        if path.parts[0] == "tests" and path.name.startswith("test_") and not is_in_package:
            folders.setdefault(path.name, []).append(str(path.parent))
    wrong = [f"{name} is in {' and in '.join(found)}" for name, found in folders.items() if len(found) > 1]
    assert folders and not wrong, "\n".join(wrong)
