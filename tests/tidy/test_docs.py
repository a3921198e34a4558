"""The pages agree with the code."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

from project import ROOT, files, program, read


def table_rows(text):
    """The cells of each row of the tables in `text`, without heads."""
    rows = []
    for line in text.splitlines():
        if line.startswith("|") and not re.match(r"^\|[-| ]+\|$", line):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            rows.append([cell.strip().replace("\\|", "|") for cell in cells])
    return rows


def launcher_module(name):
    sys.path.insert(0, str(ROOT / "launch" / "lib"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


# ---- README.md ----


def is_defined(function, source):
    """Whether the source defines the function: a definition has a type before the name, a call has not."""
    return re.search(
        rf"^ *(?!return|co_return)[\w:<>]+[\w:<>&* ]* (?:\w+::)*{re.escape(function)}\(", source, re.MULTILINE
    )


HOP = re.compile(r"^\d+\. .*`([\w/.]+): (\w+(?:::\w+)*)`", re.MULTILINE)


@pytest.mark.parametrize(
    "source, is_there",
    [
        ("Result<> Doors::generate(\n", True),
        ("    static Result<Answer> generate(\n", True),
        ("        runner_.generate(request);\n", False),
        ("        return generate(request);\n", False),
        ("        co_return co_await generate(\n", False),
        ("            generate(\n", False),
    ],
)
def test_a_hop_is_a_definition_and_no_call(source, is_there):
    assert bool(is_defined("generate", source)) == is_there


@pytest.mark.parametrize("path", ["one request", "one push"])
def test_each_hop_of_the_readme_is_a_function_that_exists(path):
    hops = HOP.findall(read("README.md").split(f"## The path of {path}\n")[1].split("\n## ")[0])
    assert 7 <= len(hops) <= 12, f"{len(hops)} hops; about eight are readable"
    wrong = []
    for name, function in hops:
        if not (ROOT / name).is_file():
            wrong.append(f"{name}: no such file")
        elif not is_defined(function, read(name)):
            wrong.append(f"{name}: no function {function}")
    assert not wrong, "\n".join(wrong)


def test_the_readme_maps_every_folder():
    text = read("README.md")
    folders = {path.parts[0] for path in files() if len(path.parts) > 1}
    missing = [name for name in sorted(folders) if f"`{name}/`" not in text and name[0] != "."]
    assert not missing, missing


def test_links_between_pages_lead_somewhere():
    wrong = []
    for page in files(".md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", read(page)):
            if not (ROOT / page.parent / target).exists():
                wrong.append(f"{page} links to {target}")
    assert not wrong, "\n".join(wrong)


def headings(page):
    """The anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    names = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-") for name in names}


def test_links_to_a_heading_find_it():
    wrong = []
    for page in files(".md"):
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]*)\)", read(page)):
            other = (ROOT / page.parent / target).resolve().relative_to(ROOT) if target else page
            if other.suffix == ".md" and (ROOT / other).exists() and anchor not in headings(other):
                wrong.append(f"{page} links to {target}#{anchor}")
    assert not wrong, "\n".join(wrong)


def test_contributing_names_files_that_exist():
    named = set(re.findall(r"`([\w.-]+(?:/[\w.-]+)+\.\w+)`", read("CONTRIBUTING.md")))
    assert len(named) > 10
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


# ---- docs/design.md ----


def named_by_the_design(what):
    """The names that the page lists between these marks."""
    listed = re.search(rf"<!-- begin: {what} -->(.*?)<!-- end: {what} -->", read("docs/design.md"), re.DOTALL)
    return [name.strip() for name in listed.group(1).split(",")]


def test_the_families_of_the_design_are_those_of_the_code():
    rows = re.search(r"kFamilies\{\{(.*?)\}\};", read("tp_worker/config/families.cpp"), re.DOTALL)
    built = re.findall(r'"(\w+)ForCausalLM"', rows.group(1))
    assert built
    assert named_by_the_design("families") == built


def test_the_communicators_of_the_design_are_those_of_the_code():
    built = [
        name
        for path in files(".h", ".cpp")
        if path.parts[0] == "tp_worker"
        for name in re.findall(r"class (\w+)Communicator\b[^;{]*: public Communicator\b", read(path))
    ]
    assert built
    assert named_by_the_design("communicators") == built


# ---- docs/running.md and docs/flags.md ----


def test_the_pages_list_each_exit_code():
    problem = launcher_module("problem")
    text = read("docs/running.md")
    block = re.search(r"<!-- begin: exit codes -->(.*)<!-- end: exit codes -->", text, re.DOTALL)
    rows = {int(code): meaning for code, meaning in table_rows(block.group(1))[1:]}
    codes = {
        value for name, value in vars(problem).items() if re.match(r"EXIT_[A-Z]+$", name) and isinstance(value, int)
    }
    assert set(rows) == codes | set(problem.EXIT_DIED.values())
    for kind, code in problem.EXIT_DIED.items():
        assert rows[code] == f"`{kind}` died"


def test_the_pages_list_each_flag_of_serve():
    parser = launcher_module("command_line").parser()
    serve = next(a for a in parser._actions if a.choices).choices["serve"]
    flags = {flag for action in serve._actions for flag in action.option_strings}
    flags -= {"-h", "--help"}
    section = read("docs/flags.md").split("## Flags of a tree")[1].split("\n## ")[0]
    listed = {re.match(r"`(--[\w-]+)", row[0]).group(1) for row in table_rows(section)[1:]}
    assert listed == flags


# ---- docs/protocol.md and the messages ----


def test_every_message_is_in_the_list_of_all_messages():
    """A test below checks that the page has exactly the declared messages."""
    listed = set(re.findall(r"^### `(\w+)`$", read("docs/protocol.md"), re.MULTILINE))
    declared = set()
    for path in files(".h"):
        if path.parts[0] == "messages":
            declared |= set(re.findall(r'std::string_view k(?:Reply)?Type = "(\w+)"', read(path)))
    assert declared == listed


def test_protocol_md_has_the_messages_as_they_are():
    check = subprocess.run(
        [program("protocol_doc"), "--check", ROOT / "docs" / "protocol.md"],
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr


def test_python_has_the_fields_of_the_messages():
    check = subprocess.run(
        [program("python_fields"), "--check", ROOT / "client" / "python" / "pitstop" / "messages.py"],
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stderr


def sampling_parameters():
    """The names of sampling parameters in docs/protocol.md, which is written from messages/sampling.h."""
    section = read("docs/protocol.md").split("\n### SamplingParams\n")[1].split("\n#")[0]
    names = [re.fullmatch(r"`(\w+)`", row[0]) for row in table_rows(section)]
    return {name.group(1) for name in names if name}


def test_the_page_of_http_lists_each_sampling_parameter():
    source = read("http_proc/format/sampling_fields.cpp")
    bus_alone = re.findall(r'"(\w+)"', re.search(r"kBusAlone =[^;]*;", source).group(0))
    assert set(bus_alone) <= sampling_parameters()
    row = next(row for row in table_rows(read("docs/http.md")) if row[0] == "`sampling_params`")
    listed = set(re.findall(r"`(\w+)`", row[1].split(" of ", 1)[1].split("([meanings]")[0]))
    assert listed == {"sampling_" + name if name == "seed" else name for name in sampling_parameters() - set(bus_alone)}


@pytest.mark.parametrize("script", ["golden.py", "every_golden.py"])
def test_the_golden_bytes_are_what_their_script_writes(script):
    """every_golden.py reads the messages' fields from the page."""
    pytest.importorskip("msgpack")
    subprocess.run([sys.executable, ROOT / "tests/messages" / script, "--check"], check=True)


def test_the_bytes_in_protocol_md_are_what_its_example_sends():
    msgpack = pytest.importorskip("msgpack")
    block = read("docs/protocol.md").split("byte for byte:")[1].split("```")[1]
    # Hex pairs are in the left column, before two spaces and the explanation.
    frames = {"frame 0": b"", "frame 1": b""}
    current = None
    for line in block.strip().splitlines():
        if line[:7] in frames:
            current, line = line[:7], line[7:]
        frames[current] += bytes.fromhex(" ".join(re.match(r"\s*((?:[0-9a-f]{2}\s+)+)", line + " ").group(1).split()))
    assert frames["frame 0"] == b"generate"
    assert msgpack.unpackb(frames["frame 1"]) == {
        "tree": "6f1d0c5e9b2a47f38e6d1c0b5a493827",
        "rid": "r-1",
        "text": "Once upon a time",
        "sampling": {"max_new_tokens": 40},
    }


def test_the_golden_bytes_are_what_pythons_msgpack_writes():
    script = ROOT / "tests" / "messages" / "golden.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0


# ---- docs/design.md ----


def test_each_promise_that_is_claimed_in_a_test_is_in_the_design():
    promises = set(re.findall(r"^\*\*(P\d+)", read("docs/design.md"), re.MULTILINE))
    assert promises == {f"P{i}" for i in range(1, 12)}
    tested = set()
    for path in files(".cpp", ".py", ".cu"):
        if path.parts[0] == "tests":
            tested |= set(re.findall(r"\b(?:test_)?(P\d+)_", read(path)))
    assert tested <= promises, tested - promises


# ---- kernels/KERNELS.md ----


def test_each_kernel_family_has_its_row():
    families = {
        path.stem
        for path in files(".h")
        if path.parts[0] == "kernels" and len(path.parts) == 2 and re.search(r"_ref\(", read(path))
    } - {"reference"}
    rows = {pathlib.Path(row[0].strip("`")).stem for row in table_rows(read("kernels/KERNELS.md"))}
    assert families <= rows, families - rows
