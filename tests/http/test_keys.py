"""Which routes each key opens."""

import subprocess

import pytest

from process_tree import LAUNCHER, environment
from wire import DEADLINE_S

API = {"PITSTOP_API_KEY": "api-secret"}
ADMIN = {"PITSTOP_ADMIN_API_KEY": "admin-secret"}
OPEN, DATA, ADMIN_PART = ("/ping", "/health"), "/v1/models", {"abort_all": True}


def statuses(http, key=None, scheme="Bearer "):
    headers = {"Authorization": scheme + key} if key else {}
    return (
        [http.get(path, headers=headers).status for path in OPEN],
        http.get(DATA, headers=headers).status,
        http.post("/abort_request", ADMIN_PART, headers=headers).status,
    )


def test_without_keys_everything_is_open(front_end):
    assert statuses(front_end().http) == ([200, 200], 200, 200)


def test_an_api_key_alone_opens_all(front_end):
    http = front_end(env=API).http
    assert statuses(http) == ([200, 200], 401, 401)
    assert statuses(http, "wrong") == ([200, 200], 401, 401)
    assert statuses(http, "api-secret") == ([200, 200], 200, 200)
    assert statuses(http, "api-secret", scheme="bEARER ") == ([200, 200], 200, 200)
    assert http.get(DATA, headers={"x-api-key": "api-secret"}).status == 200


def test_an_admin_key_alone_leaves_data_open(front_end):
    http = front_end(env=ADMIN).http
    assert statuses(http) == ([200, 200], 200, 403)
    assert statuses(http, "admin-secret") == ([200, 200], 200, 200)


def test_with_both_the_api_key_opens_no_admin_route(front_end):
    http = front_end(env={**API, **ADMIN}).http
    assert statuses(http) == ([200, 200], 401, 401)
    assert statuses(http, "api-secret") == ([200, 200], 200, 403)
    assert statuses(http, "admin-secret") == ([200, 200], 200, 200)


@pytest.mark.parametrize("key", ["api-secre", "api-secret1", "API-SECRET", "", "api-secret\x00"])
def test_a_key_is_the_whole_key(front_end, key):
    http = front_end(env=API).http
    with http.raw() as raw:
        raw.send(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % key.encode())
        assert raw.read_answer()[0] in (400, 401)


def test_a_refusal_has_the_dialects_shape(front_end):
    http = front_end(env=API).http
    assert http.post("/generate", {"text": "x"}).json == {"error": "Unauthorized"}
    openai = http.post("/v1/completions", {"prompt": "x"})
    assert openai.status == 401 and openai.json["error"]["code"] == "invalid_api_key"
    assert openai.headers["www-authenticate"] == "Bearer"


def test_a_refused_body_is_not_read(front_end):
    http = front_end(env=API).http
    with http.raw() as raw:
        raw.send(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n")
        assert raw.read_all().startswith(b"HTTP/1.1 401 ")


# ---- keys that no client could use ----


@pytest.mark.parametrize(
    "flag, variable", [("--api-key", "PITSTOP_API_KEY"), ("--admin-api-key", "PITSTOP_ADMIN_API_KEY")]
)
@pytest.mark.parametrize(
    "key, problem", [("", "is empty"), ("a\nb", "control character"), (" a", "space"), ("a\t", "control character")]
)
def test_a_key_that_no_request_can_carry_is_refused_at_start(tmp_path, flag, variable, key, problem):
    """An empty key, for example, would let every client in."""
    for arguments, environ in (([flag, key], {}), ([], {variable: key})):
        ended = subprocess.run(
            [LAUNCHER, "serve", "--run-dir", tmp_path / "tree", "--port", "0", *arguments],
            capture_output=True,
            text=True,
            env={**environment(), **environ},
            timeout=DEADLINE_S,
        )
        assert ended.returncode == 3, ended
        assert flag in ended.stderr and variable in ended.stderr and problem in ended.stderr, ended
        assert not (tmp_path / "tree").exists()
