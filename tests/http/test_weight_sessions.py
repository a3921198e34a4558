"""Sessions of trainers over HTTP: the trainer of a call, the calls after a loss, and sessions that replace others.

SGLang's and vLLM's trainers name no session. Two front ends are used, as behind a load balancer.
"""

import json
import pathlib

import pytest

from control_tree import http  # noqa: F401
from http_calls import Http
from process_tree import wait_until
from trainers import broadcast, load, sglang_group

ROOT = pathlib.Path(__file__).resolve().parents[2]
TREE_FLAGS = ("--tp", 2)
STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
GOLDEN = json.loads((ROOT / "tests/data/golden/digests.json").read_text())["models"]
DIGESTS = {name: of["digest"] for name, of in GOLDEN.items()}
UPDATE, END, DROP = "/update_weights_from_distributed", "/end_weight_update", "/drop_weight_update"


@pytest.fixture(autouse=True)
def serves_stories(http, admin):
    admin.call("update_weights", update={"source": {"kind": "disk", "path": str(STORIES)}})
    yield
    if session := admin.call("status").get("session"):
        admin.call("drop_stage", session=session["session"])
    http.post(END)  # END reports a loss, if there is one, and DROP then clears it
    http.post(DROP)


@pytest.fixture
def other(front_end):
    """A second front end of the same tree."""
    return Http(front_end().http.url)


def halves():
    tensors = list(load(BARD).items())
    return dict(tensors[:30]), dict(tensors[30:])


def body_of(tensors, **fields):
    """The body of an update that must be refused before its tensors are sent."""
    return {
        "names": list(tensors),
        "dtypes": ["bfloat16"] * len(tensors),
        "shapes": [list(array.shape) for array in tensors.values()],
        **fields,
    }


def refused(answer, *words):
    assert answer.status in (400, 409), answer
    body = answer.json()
    message = body["message"] if "message" in body else body["error"]["message"]
    assert all(word in message for word in words), message
    return message


def send(http, **fields):
    """Sends a bucket of the open session, whose end is refused without any."""
    with sglang_group(http) as group:
        assert broadcast(http, group, halves()[0], **fields).status == 200


def digest(http):
    return http.ok("GET", "/get_weight_version").json()["weight_digest"]


def expire(admin):
    """Waits until the session has timed out."""
    wait_until(lambda: not admin.call("status").get("session"), "the session to end")


# ---- which trainer a call belongs to ----


def test_a_session_of_one_front_end_goes_on_through_another(http, admin, other):
    first, second = halves()
    with sglang_group(http) as group:
        begun = http.ok("POST", "/begin_weight_update").json()
        assert begun["session"] == admin.call("status")["session"]["session"]
        assert broadcast(other, group, first, weight_version="by-a-bucket").status == 200
        assert broadcast(http, group, second).status == 200
        assert digest(http) == DIGESTS["stories"], "nothing serves before the end"
        ended = other.ok("POST", END).json()
        assert ended["weight_digest"] == DIGESTS["bard"]
        assert http.ok("GET", "/get_weight_version").json()["weight_version"] == "by-a-bucket"
        refused(http.post(END), "begin one first")
        assert broadcast(http, group, second).status == 200, "an update of its own again"


def test_a_call_may_name_its_session(http, other):
    first, second = halves()
    with sglang_group(http) as group:
        number = http.ok("POST", "/start_weight_update").json()["session"]
        for wrong in (number + 1, 0, -1, "x"):
            assert http.post(UPDATE, body_of(first, session=wrong)).status == 400
        assert broadcast(http, group, first, session=number).status == 200
        assert broadcast(other, group, second, session=number).status == 200
        refused(http.post(END, {"session": number + 1}), f"session {number + 1} has ended or never existed")
        assert other.post("/finish_weight_update", {"session": number, "weight_version": "named"}).status == 200
        assert digest(http) == DIGESTS["bard"]
        refused(http.post(END, {"session": number}), f"session {number}", "committed as epoch")
        refused(http.post(UPDATE, body_of(first, session=number)), f"session {number}", "committed as epoch")


def test_a_session_of_the_bus_is_none_of_http(http, admin):
    number = admin.call(
        "begin_update", holder="somebody's push", update={"source": {"kind": "buckets"}, "partial": True}
    )["session"]
    first, _ = halves()
    refused(http.post(UPDATE, body_of(first)), f"session {number}", "somebody's push")
    refused(http.post(END), "begin one first")
    refused(http.post(DROP), f"name {number}")
    refused(http.post("/begin_weight_update"), f"session {number}", "somebody's push", "take_over")
    answer = http.ok("POST", DROP, {"session": number}).json()
    assert answer["success"] and f"session {number}" in answer["message"]
    assert not admin.call("status").get("session")


# ---- losses ----


@pytest.mark.parametrize("way", ["drop on the bus", "idle", "failure", "drop by the other"])
def test_P2_what_follows_a_loss_is_refused_by_name(http, admin, other, way):
    """Without the refusal, the trainer's remaining calls would become an update of their own, and half a model would
    serve."""
    first, second = halves()
    with sglang_group(http, survives=way != "failure") as group:
        fields = {"idle_timeout_s": 0.3} if way == "idle" else {}
        number = http.ok("POST", "/begin_weight_update", fields).json()["session"]
        if way != "idle":
            assert broadcast(http, group, first).status == 200
        if way == "drop on the bus":
            admin.call("drop_stage")
        elif way == "idle":
            expire(admin)
        elif way == "failure":
            nothing = body_of({"model.nothing.weight": next(iter(second.values()))})
            assert http.post(UPDATE, nothing).status == 400
        else:
            assert f"session {number}" in other.ok("POST", DROP).json()["message"]
        for front_end in (other, http, http):
            refused(front_end.post(UPDATE, body_of(second)), f"session {number}", "is over", "None of it takes effect")
        info = body_of(second)
        info["dtype_names"] = info.pop("dtypes")
        refused(other.post("/update_weights", {"update_info": info}), f"session {number}")
        refused(http.post(END), f"session {number}", "begin one first")
        assert digest(http) == DIGESTS["stories"]
        other.ok("POST", "/begin_weight_update")
        if way == "failure":
            return  # the failure ended the group, too
        assert broadcast(http, group, {**first, **second}).status == 200
        assert http.ok("POST", END).json()["weight_digest"] == DIGESTS["bard"]


def test_the_next_trainers_calls_are_its_own_after_a_drop_on_the_bus(http, admin):
    """If the front end kept the ended session's number, it would lose the next trainer's first call and commit the
    remaining ones."""
    first, second = halves()
    with sglang_group(http) as group:
        http.ok("POST", "/begin_weight_update")
        assert broadcast(http, group, second).status == 200
        admin.call("drop_stage")
        http.ok("POST", "/begin_weight_update")
        for half in (first, second):
            assert broadcast(http, group, half).status == 200
        assert http.ok("POST", END).json()["weight_digest"] == DIGESTS["bard"]


def test_a_dead_trainers_session_ends_within_seconds(http, admin):
    """An abandoned session must not block all updates for minutes."""
    http.ok("POST", "/begin_weight_update")
    assert 5 < admin.call("status")["session"]["ends_in_s"] <= 10
    http.ok("POST", DROP)
    for wrong in (0, -1, "soon", 1e9):
        assert http.post("/begin_weight_update", {"idle_timeout_s": wrong}).status == 400
    http.ok("POST", "/start_weight_update?idle_timeout_s=60")
    assert 50 < admin.call("status")["session"]["ends_in_s"] <= 60


# ---- which session replaces which ----


def test_a_begin_beside_a_session_says_whose_it_is(http, other):
    number = http.ok("POST", "/begin_weight_update").json()["session"]
    for path in ("/begin_weight_update", "/start_weight_update"):
        message = refused(
            other.post(path),
            f"session {number}",
            "HTTP client at 127.0.0.1",
            "idle for",
            "automatically in",
            "take_over",
        )
    refused(http.post("/update_weights_from_disk", {"model_path": str(BARD)}), f"session {number}")
    send(other)
    assert other.post(END).status == 200, message


@pytest.mark.parametrize(
    "begin, end", [("/begin_weight_update", END), ("/start_weight_update", "/finish_weight_update")]
)
def test_P2_a_take_over_drops_the_dead_ones_half_and_takes_none_of_its_calls(http, other, begin, end):
    first, second = halves()
    with sglang_group(http) as group:
        dead = http.ok("POST", begin).json()["session"]
        assert broadcast(http, group, first).status == 200
        begun = other.ok("POST", begin, {"take_over": True}).json()
        number = begun["session"]
        assert number != dead and f"session {dead}" in begun["message"] and "must name it" in begun["message"]
        # The first trainer is still alive, and sends another call.
        refused(http.post(UPDATE, body_of(second)), f"session {number} took over from session {dead}")
        refused(http.post(end), "took over")
        assert broadcast(other, group, first, session=number).status == 200
        assert broadcast(http, group, second, session=number).status == 200
        assert other.post(end, {"session": number}).status == 200
        assert digest(http) == DIGESTS["bard"]


def test_a_take_over_where_nothing_is_open_is_a_begin(http):
    begun = http.ok("POST", "/begin_weight_update?take_over=true").json()
    assert begun["message"] == "Success"
    refused(http.post(END), "the update of the model is partial and brings no tensor")
    http.ok("POST", "/begin_weight_update")
    send(http)
    http.ok("POST", END)


def test_skyrls_calls_know_the_same_fields(http):
    def rpc(method, **kwargs):
        return http.post("/collective_rpc", {"method": method, "kwargs": kwargs})

    number = http.ok("POST", "/begin_weight_update").json()["session"]
    refused(rpc("skyrl_start_weight_update"), f"session {number}")
    assert rpc("skyrl_start_weight_update", take_over=True).status == 200
    refused(rpc("skyrl_finish_weight_update"), "took over")
    refused(rpc("skyrl_finish_weight_update", session=number), f"session {number}", "took over")
    send(http, session=number + 1)
    assert rpc("skyrl_finish_weight_update", session=number + 1).status == 200


def test_a_drop_of_nothing_says_so(http):
    assert http.ok("POST", DROP).json() == {"success": True, "message": "no session is open"}
    refused(http.post(DROP, {"session": 77}), "session 77")
    assert http.post(DROP, {"session": "x"}).status == 400
