"""Without keys, programs get answers, but web pages of other sites do not."""

import contextlib
import functools
import http.server as http_server
import threading

import pytest

from browser import CHROMIUM, Browser

ADMIN = {"PITSTOP_ADMIN_API_KEY": "admin-secret"}
API = {"PITSTOP_API_KEY": "api-secret"}
OPEN = ("/ping", "/health", "/health_generate", "/metrics", "/")
PAGE = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "User-Agent": "Mozilla/5.0"}
IMAGE = {"Sec-Fetch-Site": "cross-site", "User-Agent": "Mozilla/5.0"}
# A browser sends no headers about the page to another machine's address over plain HTTP.
FAR_IMAGE = {"User-Agent": "Mozilla/5.0", "Accept": "image/*"}
REBOUND = {"Host": "evil.example:30000", "Sec-Fetch-Site": "same-origin", "User-Agent": "Mozilla/5.0"}
BY_GET = ("/flush_cache", "/release_memory_occupation", "/resume_memory_occupation", "/weights_checker")
BY_POST = ("/pause_generation", "/shutdown", "/abort_request", "/update_weights_from_disk", "/generate")


def is_untouched(http):
    return not http.get("/is_sleeping").json["is_memory_released"] and not http.get("/is_paused").json["is_paused"]


@pytest.mark.parametrize("headers", [PAGE, IMAGE, FAR_IMAGE, REBOUND], ids=["page", "image", "far image", "rebound"])
@pytest.mark.parametrize("path", BY_GET)
def test_a_page_of_another_site_changes_nothing_by_get(http, path, headers):
    for method in ("GET", "HEAD"):
        answer = http.call(method, path, headers=headers)
        assert answer.status == 403, answer
    assert "key" in http.get(path, headers=headers).message
    assert is_untouched(http)


@pytest.mark.parametrize("headers", [PAGE, REBOUND, {"Origin": "null"}], ids=["page", "rebound", "sandbox"])
@pytest.mark.parametrize("path", BY_POST)
def test_a_page_of_another_site_changes_nothing_by_post(http, path, headers):
    simple = {**headers, "Content-Type": "text/plain"}  # sent without a preflight
    answer = http.post(path, "{}", headers=simple)
    assert answer.status == 403 and "key" in answer.message, answer
    assert is_untouched(http)


def test_a_refusal_of_a_page_is_in_the_dialects_shape(http):
    answer = http.post("/v1/completions", {"prompt": "x"}, headers=PAGE)
    assert answer.status == 403 and answer.json["error"]["type"] == "permission_error"
    assert "http://evil.example" in answer.message and "--cors-origin" in answer.message
    assert "--allowed-host" in http.get("/v1/models", headers=REBOUND).message


@pytest.mark.parametrize("headers", [PAGE, IMAGE, REBOUND], ids=["page", "image", "rebound"])
def test_open_routes_are_open_to_probes_of_any_name(http, headers):
    for path in OPEN:
        assert http.get(path, headers=headers).status == 200


def test_programs_go_on_using_get(http):
    released = "/release_memory_occupation?keep_weights=true"
    for path in ("/flush_cache", "/weights_checker", released, "/resume_memory_occupation"):
        assert http.get(path).status == 200, path
    assert http.get("/flush_cache", headers={"Host": "10.1.2.3:30000"}).status == 200
    assert http.get("/flush_cache", headers={"Host": "[::1]:30000"}).status == 200


def test_the_servers_own_page_and_the_address_bar_are_taken(http):
    own = {"Origin": http.url, "Sec-Fetch-Site": "same-origin", "User-Agent": "Mozilla/5.0"}
    assert http.get("/v1/models", headers=own).status == 200
    assert http.post("/flush_cache", headers=own).status == 200
    typed = {"Sec-Fetch-Site": "none", "User-Agent": "Mozilla/5.0"}
    assert http.get("/flush_cache", headers=typed).status == 200


def test_tensors_are_not_reset_by_get(http):
    for method in ("GET", "HEAD"):
        answer = http.call(method, "/weights_checker?action=reset_tensors")
        assert answer.status == 405 and answer.headers["allow"] == "POST"
    assert http.generate(text="Once", max_new_tokens=1)["output_ids"]


def test_an_absolute_target_is_its_own_host(http):
    with http.raw() as raw:
        raw.send(b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.read_answer()[0] == 403
        raw.send(b"GET http://127.0.0.1:1/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert raw.read_answer()[0] == 200
        raw.send(b"GET http:///v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.read_answer()[0] == 400


def test_a_program_of_http_1_0_may_name_no_host(http):
    with http.raw() as raw:
        raw.send(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert raw.read_all().startswith(b"HTTP/1.1 200 ")
    with http.raw() as raw:
        raw.send(b"GET /v1/models HTTP/1.0\r\nHost: evil.example\r\n\r\n")
        assert raw.read_all().startswith(b"HTTP/1.1 403 ")
    with http.raw() as raw:
        raw.send(b"GET /v1/models HTTP/1.0\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
        assert raw.read_all().startswith(b"HTTP/1.1 400 ")


def test_a_preflight_promises_another_site_nothing(http):
    asked = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    answer = http.call("OPTIONS", "/flush_cache", headers=asked)
    assert answer.status == 204 and not any(name.startswith("access-control") for name in answer.headers)


def test_names_and_an_origin_may_be_allowed(front_end):
    http = front_end("--allowed-host=node7", "--allowed-host=.cluster.local", "--cors-origin=https://app.example").http
    for host in ("node7:30000", "engine.cluster.local"):
        assert http.get("/v1/models", headers={"Host": host}).status == 200
    assert http.get("/v1/models", headers={"Host": "node8"}).status == 403
    page = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
    answer = http.post("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 1}}, headers=page)
    assert answer.status == 200 and answer.headers["access-control-allow-origin"] == "https://app.example"
    assert http.get("/flush_cache", headers=IMAGE).status == 403


def test_a_key_is_enough_from_anywhere(front_end):
    http = front_end(env=API).http
    keyed = {**PAGE, "Host": "engine.example", "Authorization": "Bearer api-secret"}
    assert http.get("/v1/models", headers=keyed).status == 200
    assert http.get("/v1/models", headers=PAGE).status == 401


def test_with_an_admin_key_alone_the_data_routes_look_at_the_page(front_end):
    http = front_end(env=ADMIN).http
    assert http.get("/v1/models").status == 200
    assert http.get("/v1/models", headers=PAGE).status == 403
    assert http.get("/v1/models", headers={**PAGE, "x-api-key": "admin-secret"}).status == 200


def test_a_host_that_is_no_name_is_refused_at_the_start(front_end):
    server = front_end("--allowed-host=node7:30000")
    assert server.http is None and "--allowed-host is 'node7:30000'" in server.said


# Requests that a page can send without a preflight. Each is counted when it is over, however it ended.
ATTACK = """<!doctype html><title>other</title><script>
window.ended = 0;
const done = () => { ++window.ended; };
for (const path of ["/release_memory_occupation", "/flush_cache"]) {
    const image = new Image();
    image.onload = image.onerror = done;
    image.referrerPolicy = "no-referrer";
    image.src = "TARGET" + path;
    fetch("TARGET" + path, {mode: "no-cors", method: "HEAD"}).then(done, done);
}
for (const path of ["/pause_generation", "/release_memory_occupation", "/shutdown"])
    fetch("TARGET" + path, {mode: "no-cors", method: "POST", body: "{}"}).then(done, done);
</script>"""
NUM_ATTACKS = 7


@contextlib.contextmanager
def another_site(page):
    """A server of that one page; returns its port."""

    class Handler(http_server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_):
            pass

    with http_server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.05))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium (the Debian package) to open pages in")
class TestABrowser:
    # Hosts of other sites, and an address that a browser takes for another machine, lead to this server.
    FLAGS = ("--host-resolver-rules=MAP evil.example 127.0.0.1,MAP 10.9.8.7 127.0.0.1",)

    @pytest.mark.parametrize("asked", ["127.0.0.1", "localhost", "10.9.8.7"])
    @pytest.mark.parametrize("page", ["evil.example", "localhost"])
    def test_another_sites_page_changes_nothing(self, tree, http, tmp_path, page, asked):
        attack = ATTACK.replace("TARGET", f"http://{asked}:{http.port}")
        with another_site(attack) as port, Browser(tmp_path / "profile", *self.FLAGS) as browser:
            browser.open(f"http://{page}:{port}/")
            browser.wait_for(f"window.ended === {NUM_ATTACKS}")
        assert is_untouched(http) and tree.launcher.poll() is None

    def test_a_name_that_was_made_to_lead_here_reads_and_changes_nothing(self, http, tmp_path):
        with Browser(tmp_path / "profile", *self.FLAGS) as browser:
            browser.open(f"http://evil.example:{http.port}/")  # the status page, from its own origin
            browser.wait_for("document.title.length > 0")
            for path, method in (("/v1/models", "GET"), ("/flush_cache", "GET"), ("/shutdown", "POST")):
                browser.value(
                    f"window.status_of = 0; fetch('{path}', {{method: '{method}'}})"
                    ".then(answer => { window.status_of = answer.status; })"
                )
                browser.wait_for("window.status_of !== 0")
                assert browser.value("window.status_of") == 403, path

    def test_the_servers_own_page_may_ask(self, http, tmp_path):
        with Browser(tmp_path / "profile") as browser:
            browser.open(http.url + "/")
            browser.wait_for("Number(document.documentElement.dataset.events) > 0")
            for method in ("GET", "POST"):
                browser.value(
                    f"window.status_of = 0; fetch('/flush_cache', {{method: '{method}'}})"
                    ".then(answer => { window.status_of = answer.status; })"
                )
                browser.wait_for("window.status_of !== 0")
                assert browser.value("window.status_of") == 200, method
