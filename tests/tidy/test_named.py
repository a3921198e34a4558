"""Names in comments exist: a file of the project, a member of a class or namespace, a called
function.
"""

import io
import re
import tokenize

import pytest

from project import CODE, files, read

STRING_OR_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL)
FILE = re.compile(r"[\w./-]*\w\.(?:h|cpp|cu|cuh|py|md|inc|sh|cmake)\b")
SCOPED = re.compile(r"\b[A-Za-z_]\w*(?:::[A-Za-z_]\w*)+\b")
CALL = re.compile(r"\b([A-Za-z_]\w*)\(\)")
WORD = re.compile(r"[A-Za-z_]\w*")

# Files of other projects that comments name as their source, and placeholders.
OTHERS_FILES = {
    "ATen/MapAllocator.cpp", "FILE.cpp", "Lib/pickletools.py", "ProcessGroupNCCL.cpp",
    "c10/cuda/CUDACachingAllocator.cpp", "chat_template_utils.py", "checkpoint_engine/worker.py", "compiler.py",
    "configuration_utils.py", "custom_all_reduce.cuh", "df.h", "distributed/device_communicators/pynccl.py",
    "doc/SYNTAX.md", "filters.py", "include/uapi/linux/fuse.h", "ipc_listener.cpp", "lexer.py", "libshm/socket.h",
    "llama.cpp", "modeling_rope_utils.py", "modeling_utils.py", "nvml.h", "on_ray/PROGRAM.py", "out/nsys.md",
    "parser.py", "ps.py", "runtime.py", "sandbox.py", "src/encoder.py",
    "steps/PROGRAM.py", "tests.py", "torch/csrc/CudaIPCTypes.h", "torch/csrc/StorageSharing.cpp",
    "torch/csrc/distributed/c10d/NCCLUtils.cpp", "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
    "torch/csrc/distributed/c10d/TCPStoreBackend.cpp", "tp_worker/model/CMakeFiles/x.dir/engine.cpp",
    "utils/chat_template_utils.py", "vllm/distributed/device_communicators/all_reduce_utils.py",
    "vllm/sampling_params.py",
}  # fmt: skip
OTHERS_MEMBERS = {
    "AddedVocabulary::find_matches", "ExpandableSegment::share", "NodeManager::WaitForDashboardAgentPorts",
    "String::from_utf8_lossy", "asio::awaitable",
}  # fmt: skip
OTHERS_CALLS = {"swapcontext"}
NOTHING = "_".join(["carry", "nothing", "at", "all"])  # no word of any code


def parts_of(path):
    """(code, [(line, comment)]) of a source."""
    text = read(path)
    code, comments, end = [], [], 0
    if path.suffix == ".py":
        before = tokenize.INDENT
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_doc = token.type == tokenize.STRING and before in (tokenize.INDENT, tokenize.NEWLINE)
            if token.type == tokenize.COMMENT or is_doc:
                comments.append((token.start[0], token.string))
            else:
                code.append(token.string)
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                before = token.type
        return " ".join(code), comments
    for match in STRING_OR_COMMENT.finditer(text):
        code.append(text[end : match.start()])
        end = match.end()
        is_comment = match.group().startswith(("//", "/*"))
        if is_comment:
            comments.append((text.count("\n", 0, match.start()) + 1, match.group().lstrip("/")))
        else:
            code.append(match.group())
    return " ".join([*code, text[end:]]), comments


class Project:
    def __init__(self, sources):
        self.paths = {str(path) for path in files()}
        self.names = {path.name for path in files()}
        self.words, self.comments = set(), []
        for path in sources:
            code, comments = parts_of(path)
            self.words.update(WORD.findall(code))
            self.comments += [(f"{path}:{line}", comment) for line, comment in comments]

    def has_file(self, named):
        if "/" not in named:
            return named in self.names
        return named in self.paths or any(path.endswith("/" + named) for path in self.paths)

    def missing(self, comment):
        """Names in a comment that do not exist."""
        found = [each.removeprefix("./").lstrip("/") for each in FILE.findall(comment)]
        yield from (each for each in found if each not in OTHERS_FILES and not self.has_file(each))
        for scoped in set(SCOPED.findall(comment)) - OTHERS_MEMBERS:
            if not self.words.issuperset(scoped.split("::")):
                yield scoped
        yield from (f"{each}()" for each in CALL.findall(comment) if each not in self.words | OTHERS_CALLS)


@pytest.fixture(scope="module")
def project():
    return Project(files(*CODE, ".py"))


def test_names_in_comments_exist(project):
    assert len(project.comments) > 10_000
    missing = [f"{where}: {each}" for where, comment in project.comments for each in project.missing(comment)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(
    "comment, missing",
    [
        ("see base/clock.h", ["base/clock.h"]),
        ("see base/time.h and time.h", []),
        ("as Admin::execute does", []),
        (f"as Admin::{NOTHING} does", [f"Admin::{NOTHING}"]),
        (f"REQUIRES: is_collecting() and {NOTHING}()", [f"{NOTHING}()"]),
    ],
)
def test_missing_names_are_found(project, comment, missing):
    assert list(project.missing(comment)) == missing


def test_exceptions_are_used(project):
    text = "\n".join(comment for _, comment in project.comments)
    unused = [each for each in OTHERS_FILES | OTHERS_MEMBERS | OTHERS_CALLS if each not in text]
    assert not unused


def test_pointers_into_device_memory_are_device_something():
    """docs/style.md, section 4, rule 12: `device_picks`, not `picks_there`."""
    wrong = []
    for path in files(".h", ".cpp", ".cu", ".cuh"):
        for number, line in enumerate(read(path).splitlines(), 1):
            for name in re.findall(r"\b\w+_there\b", line.partition("//")[0]):
                if not re.search(r"(^|_)(is|was|are)(_always)?_there$", name):
                    wrong.append(f"{path}:{number}: {name}")
    assert not wrong, "\n".join(wrong)
