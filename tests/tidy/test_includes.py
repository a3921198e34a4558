"""Includes point one way (docs/style.md, section 1), and all dependencies are listed."""

import re

import pytest

from project import CODE, ROOT, files, read

# A folder may include itself and the layers below its own. No process includes another.
LAYERS = [
    {"base"},
    {"digest", "pickle"},
    {"messages", "kernels", "text", "checkpoint"},
    {"jinja", "grammar"},
    {"bus"},
    {"client"},
    {"tokenizer_proc", "scheduler_proc", "detokenizer_proc", "tp_worker", "http_proc"},
    {"bench"},
    {"tests"},
]
# The rooms of a big folder have layers of their own. Files outside the rooms (main.cpp) are OUTSIDE: they may include
# every room, and no room includes them.
OUTSIDE = ""
ROOMS = {
    "client": [{OUTSIDE}, {"command"}],
    "kernels": [{"runtime"}, {OUTSIDE, "cpu", "device"}],
    "http_proc": [
        {"format"},
        {"server"},
        {"generation", "control", "observe"},
        {"sglang", "openai", "anthropic"},
        {"vllm"},
        {OUTSIDE},
    ],
    "tp_worker": [
        {"groups", "config", "device"},
        {"ranks"},
        {"weights"},
        {"blocks"},
        {"model", "sources"},
        {"update"},
        {OUTSIDE},
    ],
}
# The place of test data; a benchmark uses the same texts and tokenizers.
FOR_EVERYBODY = {"tests/text/tokenizer_dirs.h"}
LAYER_OF = {folder: layer for layer, folders in enumerate(LAYERS) for folder in folders}

# Third-party headers and the Debian package each comes from. CUDA and NCCL come with their toolkit.
PACKAGES = {
    "zmq.hpp": "cppzmq-dev",
    "zmq.h": "libzmq3-dev",
    "msgpack.hpp": "libmsgpack-cxx-dev",
    "spdlog/": "libspdlog-dev",
    "fmt/": "libfmt-dev",
    "nlohmann/": "nlohmann-json3-dev",
    "pcre2.h": "libpcre2-dev",
    "utf8proc.h": "libutf8proc-dev",
    "xxhash.h": "libxxhash-dev",
    "boost/": "libboost-dev",
    "gtest/": "libgtest-dev",
    "benchmark/": "libbenchmark-dev",
    "sanitizer/": "build-essential",
}
FETCHED = ("xgrammar/",)  # launch/xgrammar.txt
TOOLKIT = ("cuda", "cublas", "nccl", "cooperative_groups", "nv")
# Headers of the C library and of the compiler.
SYSTEM = re.compile(
    r"^(sys|linux|arpa|netinet|net|asm)/[a-z_0-9]+\.h$"
    r"|^(unistd|fcntl|poll|signal|dirent|sched|pthread|dlfcn|time|errno|elf|link|malloc|limits"
    r"|cpuid|immintrin|cxxabi|execinfo|pwd|spawn|ifaddrs|stdlib|string|stdio|termios|netdb)\.h$"
)
PYTHON_PACKAGES = {
    "zmq": "python3-zmq",
    "msgpack": "python3-msgpack",
    "numpy": "python3-numpy",
    "pytest": "python3-pytest",
}
# Packages of tests/requirements.txt, without which tests skip, and a benchmark's peer.
CLIENTS = {"anthropic", "openai", "schemathesis", "sglang_router", "tokenizers", "ray"}
# The packages that bench/peer/environment.py installs.
PEERS = {"gguf", "llama_cpp", "vllm"}
# Packages of launch/dependencies_optional.txt: tests skip without them.
EXAMPLES_PACKAGES = {"peft", "transformers"}  # examples begin with the command that installs them
OPTIONAL_PACKAGES = {"torch": "python3-torch", "tqdm": "python3-tqdm", "matplotlib": "python3-matplotlib"}


def packages(path="launch/dependencies.txt"):
    lines = read(path).splitlines()
    return {line.split("#")[0].strip() for line in lines} - {""}


def includes(path):
    return re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', read(path), re.MULTILINE)


def code_files():
    return [path for path in files(*CODE) if path.parts[0] in LAYER_OF]


def test_includes_point_to_lower_layers_only():
    wrong = []
    for path in code_files():
        folder = path.parts[0]
        for quote, name in includes(path):
            target = name.split("/")[0]
            if quote == "<" or target == folder or "/" not in name or name in FOR_EVERYBODY:
                continue
            if target not in LAYER_OF:
                wrong.append(f"{path} includes {name}, which is in no folder of the project")
            elif LAYER_OF[target] >= LAYER_OF[folder]:
                wrong.append(f"{path} includes {name}: {folder} may not know {target}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", sorted(ROOMS))
def test_includes_between_rooms_point_to_lower_layers_only(folder):
    layer_of = {room: layer for layer, rooms in enumerate(ROOMS[folder]) for room in rooms}
    open_rooms = next((rooms for rooms in ROOMS[folder] if OUTSIDE in rooms), set())
    wrong = []
    for path in code_files():
        if path.parts[0] != folder or path.parts[:2] == ("client", "python"):
            continue
        room = path.parts[1] if len(path.parts) > 2 else OUTSIDE
        if room not in layer_of:
            wrong.append(f"{path} is in no room of {folder}")
            continue
        for quote, name in includes(path):
            parts = name.split("/")
            if quote == "<" or parts[0] != folder:
                continue
            other = parts[1] if len(parts) > 2 else OUTSIDE
            if other == room or {room, other} <= open_rooms:
                continue
            if layer_of.get(other, len(layer_of)) >= layer_of[room]:
                wrong.append(f"{path} includes {name}: {room or folder} may not know {other or folder}")
    assert not wrong, "\n".join(wrong)


def test_quoted_includes_name_the_file_from_the_root():
    wrong = [
        f"{path} includes {name}"
        for path in code_files()
        for quote, name in includes(path)
        if quote == '"' and not (ROOT / name).is_file()
    ]
    assert not wrong, "\n".join(wrong)


def test_headers_begin_with_a_comment_and_pragma_once():
    wrong = []
    for path in code_files():
        if path.suffix not in (".h", ".cuh"):
            continue
        text = read(path)
        if not text.startswith("// "):
            wrong.append(f"{path} does not open with what it is for")
        if "\n#pragma once\n" not in text:
            wrong.append(f"{path} has no #pragma once")
    assert not wrong, "\n".join(wrong)


def test_third_party_headers_come_from_the_listed_packages():
    listed, wrong = packages(), []
    for path in code_files():
        for quote, name in includes(path):
            if quote == '"' or "." not in name or SYSTEM.match(name) or name.startswith(TOOLKIT + FETCHED):
                continue
            package = next((p for head, p in PACKAGES.items() if name.startswith(head)), None)
            if package not in listed:
                wrong.append(f"{path} includes <{name}>: {package or 'from no known package'}")
    assert not wrong, "\n".join(wrong)


def test_python_imports_come_from_the_standard_library_or_the_listed_packages():
    import sys

    wrong = []
    listed = packages() | packages("launch/dependencies_optional.txt")
    known = {**PYTHON_PACKAGES, **OPTIONAL_PACKAGES}
    own = {path.stem for path in files(".py")} | {path.parent.name for path in files(".py")}
    for path in files(".py"):
        if path.parts[:2] == ("tests", "golden") or path.name.startswith("make_"):
            continue  # makes data that is checked in, and lists the versions of its packages itself
        if path.parts[:2] == ("tests", "trainers") or "integrations" in path.parts:
            continue  # uses other people's packages, which have environments of their own
        if path.name == "peers_torch.py":
            continue  # runs under the python3 of a machine that has the measured packages
        for name in re.findall(r"^\s*(?:import|from)\s+(\w+)", read(path), re.MULTILINE):
            if name in sys.stdlib_module_names or name in own:
                continue
            if path.parts[:2] == ("bench", "peer") and name in PEERS:
                continue  # runs in the environment that bench/peers makes
            if path.parts[0] == "examples" and name in EXAMPLES_PACKAGES:
                continue
            if known.get(name) not in listed and name not in CLIENTS:
                wrong.append(f"{path} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_launcher_needs_the_standard_library_only():
    import sys

    own = {path.stem for path in files(".py") if path.parts[:2] == ("launch", "lib")}
    for path in files(".py"):
        if path.parts[:2] == ("launch", "lib"):
            for name in re.findall(r"^\s*(?:import|from)\s+(\w+)", read(path), re.MULTILINE):
                assert name in sys.stdlib_module_names or name in own, f"{path} imports {name}"


@pytest.mark.parametrize("package", sorted(packages()))
def test_a_listed_package_has_its_reason_beside_it(package):
    line = next(x for x in read("launch/dependencies.txt").splitlines() if x.split()[:1] == [package])
    assert re.search(r"#\s*\w", line), line


# The namespace of a folder: its name without _proc. base, which every folder uses, and client,
# which front ends include, are in pitstop itself.
IN_PITSTOP_ITSELF = {"base", "client"}
FORWARD_DECLARATIONS = re.compile(
    r"^namespace pitstop(?:::\w+)? \{\n+(?:(?:struct|class|enum class) [^;{}]*;[^\n]*\n+)+\}", re.M
)


def test_each_folder_has_a_namespace_of_its_own():
    wrong, num_checked = [], 0
    for path in code_files():
        folder = path.parts[0]
        if folder in ("bench", "tests"):
            continue
        name = "pitstop" if folder in IN_PITSTOP_ITSELF else f"pitstop::{folder.removesuffix('_proc')}"
        text = FORWARD_DECLARATIONS.sub("", read(path))
        for found in re.findall(r"^(?:inline )?namespace (pitstop[\w:]*) \{", text, re.MULTILINE):
            num_checked += 1
            if found != name and not found.startswith(f"{name}::"):
                wrong.append(f"{path} opens {found}, not {name}")
    assert num_checked > 400
    assert not wrong, "\n".join(wrong)
