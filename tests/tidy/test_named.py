"""Names in comments exist: a file of the project, a member of a class or namespace, a called
function.
"""

import collections
import io
import itertools
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
    "String::from_utf8_lossy", "asio::awaitable", "char::is_numeric",
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


PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.)*", re.MULTILINE | re.DOTALL)
SCOPE_HEAD = re.compile(r"(?:.*[>\s])?(?:class|struct|union|enum class|enum|namespace)\b(.*)", re.DOTALL)
TEMPLATE = re.compile(r"<[^<>]*>")
LAST_NAME = re.compile(r"\b[A-Za-z_]\w*\b(?!\.\.)")  # of a name whose `::` are dots
ARGUMENTS = re.compile(r"\([^()]*\)")


def scope_of(head):
    """(name, names of base classes) of a class, an enum or a namespace with this text before its brace; None: another
    block. A namespace without a name is its outer scope: ""."""
    while head != (without := TEMPLATE.sub("", ARGUMENTS.sub("", head))):
        head = without
    found = SCOPE_HEAD.fullmatch(head.strip())
    if found is None or "=" in head:
        return None
    name, _, bases = found[1].replace("::", "..").partition(":")
    words = [each for each in WORD.findall(name) if each != "final"]
    return (words[-1] if words else ""), LAST_NAME.findall(bases)


class Members:
    """The members of classes, enums and namespaces, by their last names alone: classes of one name in two folders are
    one here. A qualified name in code is a member, too."""

    def __init__(self):
        self._of, self._bases = collections.defaultdict(set), collections.defaultdict(set)

    def add(self, source):
        code = PREPROCESSOR.sub("", STRING_OR_COMMENT.sub(" ", source))
        for outer, inner in re.findall(r"(?=\b([A-Za-z_]\w*)(?:<[^<>;]*>)?::(~?[A-Za-z_]\w*))", code):
            self._of[outer].add(inner)
        open_scopes = [None]  # the names of blocks around the text; None: a function's or a value's
        head = ""  # from the end of the previous declaration
        for text, mark in re.findall(r"([^{};]*)([{};]?)", code):
            head += text
            scope = open_scopes[-1]
            if scope is not None:
                self._of[scope].update(WORD.findall(text))
            if mark == "{":
                found = scope_of(head)
                if found and found[0]:
                    self._bases[found[0]].update(found[1])
                    open_scopes.append(found[0])
                else:
                    open_scopes.append(scope if found else None)
            elif mark == "}" and len(open_scopes) > 1:
                open_scopes.pop()
            if mark:
                head = ""

    def has(self, scope, name, depth_max=8):
        if name in self._of[scope]:
            return True
        return depth_max > 0 and any(self.has(base, name, depth_max - 1) for base in self._bases[scope] - {scope})


class Project:
    def __init__(self, sources):
        self.paths = {str(path) for path in files()}
        self.names = {path.name for path in files()}
        self.words, self.members, self.comments = set(), Members(), []
        for path in sources:
            code, comments = parts_of(path)
            self.words.update(WORD.findall(code))
            if path.suffix in CODE:
                self.members.add(read(path))
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
            if not all(self.members.has(*pair) for pair in itertools.pairwise(scoped.split("::"))):
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
        ("as Admin::bring_back and messages::UpdateMode::kStaged do", []),
        ("as Admin::execute does", ["Admin::execute"]),  # Updater has one
        (f"as Admin::{NOTHING} does", [f"Admin::{NOTHING}"]),
        (f"REQUIRES: is_collecting() and {NOTHING}()", [f"{NOTHING}()"]),
    ],
)
def test_missing_names_are_found(project, comment, missing):
    assert list(project.missing(comment)) == missing


MEMBERS = """
namespace outer::inner {
namespace {
int hidden();
}
enum class Kind : int { kOne, kTwo };
template <class T>
class CAPABILITY("mutex") [[nodiscard]] Whole final : public Base<T>, private std::enable {
  public:
    explicit Whole(int width = 3) { int local = width; while (local) { --local; } }
    struct Part { int size{}; };
    std::function<void()> done_ = [] { in_lambda(); };
};
struct Base { int inherited; };
}
int Whole::defined_outside() { return std::move(other); }
#define OPENS {
static const char* const kText = "{ class Whole { in_text; }";
"""


def test_members_are_those_of_their_class():
    members = Members()
    members.add(MEMBERS)
    for scope, name in (
        ("inner", "hidden"), ("inner", "Whole"), ("Kind", "kTwo"), ("Whole", "Part"), ("Part", "size"),
        ("Whole", "done_"), ("Whole", "inherited"), ("Whole", "defined_outside"), ("outer", "inner"),
    ):  # fmt: skip
        assert members.has(scope, name), (scope, name)
    for scope, name in (
        ("Whole", "local"), ("Whole", "in_lambda"), ("Whole", "size"), ("Whole", "in_text"), ("Whole", "other"),
        ("Base", "done_"), ("Whole", "move"), ("Kind", "kThree"), ("inner", "size"), ("Unknown", "size"),
    ):  # fmt: skip
        assert not members.has(scope, name), (scope, name)


def test_exceptions_are_used(project):
    text = "\n".join(comment for _, comment in project.comments)
    unused = [each for each in OTHERS_FILES | OTHERS_MEMBERS | OTHERS_CALLS if each not in text]
    assert not unused


def test_pointers_into_device_memory_are_device_something():
    """docs/style.md, section 4, rule 12: `device_picks`, not `picks_there`."""
    wrong = []
    for path in files(".h", ".cpp", ".cu", ".cuh"):
        for number, line in enumerate(read(path).splitlines(), 1):
            for name in re.findall(r"\b\w+_there_?\b", line.partition("//")[0]):
                if not re.search(r"(^|_)(is|was|are)(_always)?_there_?$", name):
                    wrong.append(f"{path}:{number}: {name}")
    assert not wrong, "\n".join(wrong)
