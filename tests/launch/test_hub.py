"""--model org/name: from a cache that the test makes, and from a hub on this machine."""

import hashlib
import http.server
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "trainers"))

from environments import python_of  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BARD = ROOT / "launch" / "models" / "bard"
NAMES = sorted(path.name for path in BARD.iterdir())
PROMPT = "ROMEO:\n"


def snapshot(cache, model, names=NAMES, revision="main"):
    """Makes a snapshot in huggingface_hub's layout: blobs, and links to them."""
    place = cache / "models--org--name"
    files = place / "snapshots" / COMMIT
    for folder in (files, place / "blobs", (place / "refs" / revision).parent):
        folder.mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).write_text(COMMIT)
    for name in names:
        blob = place / "blobs" / hashlib.sha256((model / name).read_bytes()).hexdigest()
        shutil.copy(model / name, blob)
        (files / name).symlink_to(os.path.relpath(blob, files))
    return files


def generate(model, cache, python=sys.executable, **environment):
    build = os.environ.get("PITSTOP_BUILD", str(ROOT / "build" / "cpu"))
    command = [python, ROOT / "launch" / "pitstop", "generate", PROMPT, f"--model={model}", "--temperature=0"]
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:  # a directory in which no other tree is registered
        own = {"PATH": "/usr/bin:/bin", "PITSTOP_BUILD": build, "HF_HUB_CACHE": str(cache), "XDG_RUNTIME_DIR": runtime}
        return subprocess.run(
            [*map(str, command), "--max-new-tokens=20"],
            env={**own, **environment},
            capture_output=True,
            text=True,
            timeout=400,
        )


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    done = generate(str(BARD), tmp_path_factory.mktemp("none"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["org/name", "org/name@main", f"org/name@{COMMIT}"])
def test_a_cached_checkpoint_is_found_by_its_name(tmp_path, expected, name):
    snapshot(tmp_path, BARD)
    done = generate(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected


def test_the_cache_is_where_hugging_face_has_it(tmp_path, expected):
    snapshot(tmp_path / "home" / "hub", BARD)
    done = generate("org/name", "", HF_HOME=str(tmp_path / "home"))
    assert done.stdout == expected, done.stderr
    snapshot(tmp_path / "xdg" / "huggingface" / "hub", BARD)
    assert generate("org/name", "", XDG_CACHE_HOME=str(tmp_path / "xdg")).stdout == expected


@pytest.mark.parametrize(
    "name, why",
    [
        ("org/name", "it has no model.safetensors"),
        ("org/other", "it is not in"),
        ("org/name@v2", "revision v2 is not in"),
    ],
)
def test_a_missing_model_is_said_in_one_line(tmp_path, name, why):
    snapshot(tmp_path, BARD, [each for each in NAMES if each != "model.safetensors"])
    done = generate(name, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert why.removeprefix("it has ").removeprefix("it ") in line and "huggingface_hub" in line


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers huggingface_hub's requests to a hub: for the list of a repository's files, and for each file."""

    protocol_version = "HTTP/1.1"
    fetched = []

    def do_HEAD(self):
        self.answer(is_whole=False)

    def do_GET(self):
        self.answer(is_whole=True)

    def answer(self, is_whole):
        path = self.path.partition("?")[0]
        body, headers = None, {}
        if path.startswith("/api/models/org/name/tree/"):
            body = json.dumps(
                [
                    {"type": "file", "path": name, "size": (BARD / name).stat().st_size, "oid": self.etag(name)}
                    for name in NAMES
                ]
            ).encode()
        elif path.startswith("/api/models/org/name"):
            files = [{"rfilename": name} for name in NAMES]
            body = json.dumps({"id": "org/name", "modelId": "org/name", "sha": COMMIT, "siblings": files}).encode()
        elif path.startswith(f"/org/name/resolve/{COMMIT}/") and path.rpartition("/")[2] in NAMES:
            name = path.rpartition("/")[2]
            body = (BARD / name).read_bytes()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.etag(name)}"'}
            if is_whole:
                self.fetched.append(name)
        self.send_response(404 if body is None else 200)
        headers["Content-Length"] = str(len(body or b""))
        headers.setdefault("Content-Type", "application/json")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if is_whole and body:
            self.wfile.write(body)

    def etag(self, name):
        return hashlib.sha1((BARD / name).read_bytes()).hexdigest()

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    Hub.fetched.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_missing_model_is_fetched_once(tmp_path, expected, hub):
    python = python_of("hub")
    options = {"python": python, "HF_ENDPOINT": hub, "HF_HUB_DISABLE_XET": "1", "HOME": str(tmp_path)}
    done = generate("org/name", tmp_path / "cache", **options)
    assert done.stdout == expected, done.stderr
    assert "fetching org/name" in done.stderr and "model.safetensors" in Hub.fetched
    assert "README.md" not in Hub.fetched  # a tree does not need this file
    Hub.fetched.clear()
    done = generate("org/name", tmp_path / "cache", **options)
    assert done.stdout == expected and not Hub.fetched


def test_a_hub_that_has_it_not_is_told_by_name(tmp_path, hub):
    done = generate("org/nothing", tmp_path, python=python_of("hub"), HF_ENDPOINT=hub, HOME=str(tmp_path))
    assert done.returncode == 2
    assert "--model org/nothing" in done.stderr.splitlines()[-1]
