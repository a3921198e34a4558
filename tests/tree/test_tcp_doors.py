"""The doors for other machines: only keys open them."""

import asyncio
import json
import socket
import sys

import pytest
import zmq

from process_tree import ROOT, run, wait_until
from wire import DEADLINE_S

sys.path.insert(0, str(ROOT / "client" / "python"))
import pitstop  # noqa: E402  (after the path)
import pitstop.wire  # noqa: E402

STORIES = ROOT / "launch/models/stories"
BARD = ROOT / "launch/models/bard"
GREEDY = {"temperature": 0.0, "ignore_eos": True}
SHORT_S = 1.5  # seconds, to see that a client is kept out
NUM_HALF_OPEN = 1500


def keygen(*arguments):
    made = run("keygen", *arguments)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture
def keys(place):
    """Keys of a tree, and of two clients: worker (data door), trainer (both)."""
    path = place / "keys"
    keygen(path)
    assert keygen(path, "--client", "worker") == f"{path}/clients/worker.key"
    keygen(path, "--client", "trainer", "--admin")
    return path


@pytest.mark.parametrize("flag", ["--client", "--node", "--remove"])
@pytest.mark.parametrize("name", ["", "-x", "--admin", ".x", "a b"])
def test_an_invalid_name_makes_no_key(place, flag, name):
    """An empty name must not select the tree's own key, and a flag without a value must not use the next flag as its
    name."""
    path = place / "keys"
    refused = run("keygen", path, flag, name)
    assert refused.returncode != 0 and not path.exists(), refused
    keygen(path)
    before = {each.name: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    refused = run("keygen", path, flag, name)
    assert refused.returncode != 0 and f"'{name}'" in refused.stderr, refused
    assert before == {each.name: each.read_bytes() for each in path.rglob("*") if each.is_file()}


class Remote:
    """A tree with tcp doors, seen from another machine."""

    def __init__(self, tree, keys):
        self.tree = tree
        self.keys = keys
        doors = json.loads((tree.run_dir / "tree.json").read_text())["doors"]
        self.data, self.admin = doors["data"], doors["admin"]
        self.port = int(self.data.rpartition(":")[2])

    def key(self, name="trainer"):
        return str(self.keys / "clients" / f"{name}.key")

    def client(self, name="trainer", timeout=DEADLINE_S):
        return pitstop.Client(data=self.data, admin=self.admin, key=self.key(name), timeout=timeout)

    def flags(self, name="trainer"):
        """The flags for commands of launch/pitstop."""
        data, admin = self.data.removeprefix("tcp://"), self.admin.removeprefix("tcp://")
        return "--tcp-door", data, "--admin-tcp-door", admin, "--key", self.key(name)

    def listener(self, endpoint=None):
        """The listener's status, as a client on the tree's machine gets it."""
        with self.tree.door("admin") as door:
            (found,) = [
                each for each in door.call("status")["listeners"] if each["endpoint"] == (endpoint or self.data)
            ]
            return found

    def check_served(self):
        with self.client() as client:
            assert len(client.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4
            assert client.status()["is_ready"]


@pytest.fixture
def remote(start_tree, keys):
    tree = start_tree("--tcp-door", "127.0.0.1:0", "--admin-tcp-door", "127.0.0.1:0", "--door-keys", keys)
    return Remote(tree, keys)


def test_with_its_key_a_python_client_does_all_that_a_local_one_does(remote, reference):
    case = reference["stories"]["greedy"][0]
    with remote.client() as client:
        assert client.info.model == "stories"
        whole = client.generate(case["prompt"], max_new_tokens=40, **GREEDY).result()
        assert whole.tokens == case["continuation"][:40]
        client.pause()
        assert client.status()["replicas"][0]["state"] == "paused"
        client.continue_generation()
        client.update_weights(str(BARD), label="far")
        changed = client.generate(case["prompt"], max_new_tokens=8, **GREEDY).result()
        assert [span.label for span in changed.spans] == ["far"]

    async def again():
        async with pitstop.AsyncClient(data=remote.data, admin=remote.admin, key=remote.key()) as client:
            await client.pause()
            await client.continue_generation()
            return await client.generate(case["prompt"], max_new_tokens=8, **GREEDY).result()

    assert asyncio.run(again()).tokens == changed.tokens


def test_with_its_key_every_command_works_from_elsewhere(remote, reference):
    case = reference["stories"]["greedy"][0]

    def command(name, *arguments):
        done = run(name, *remote.flags(), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = command(
        "generate",
        "--temperature",
        "0",
        "--ignore-eos",
        "--json",
        "--no-stream",
        "--max-new-tokens",
        "20",
        case["prompt"],
    )
    assert json.loads(text.splitlines()[-1])["tokens"] == case["continuation"][:20]
    command("pause")
    assert " paused," in command("status")
    command("continue")
    assert json.loads(command("update", "bard", "--label", "far", "--json"))["label"] == "far"
    assert json.loads(command("status", "--json"))["replicas"][0]["label"] == "far"


def refusal(remote, name, door="data"):
    """The error that a client with that key gets."""
    endpoint = remote.data if door == "data" else remote.admin
    with pytest.raises(pitstop.PitstopError) as refused:
        pitstop.Client(data=endpoint, key=remote.key(name), timeout=DEADLINE_S)
    assert "does not accept this client's key" in refused.value.message
    return refused.value.code


def test_a_key_that_is_not_listed_is_refused_until_it_is_and_once_more_when_it_is_no_longer(remote):
    keygen(remote.keys, "--client", "late")
    keygen(remote.keys, "--remove", "late")
    before = remote.listener()["keys_refused_total"]
    assert refusal(remote, "late") == "permission_denied"
    done = run("status", *remote.flags("late"))
    assert done.returncode == 1 and "does not accept this client's key" in done.stderr, done
    assert remote.listener()["keys_refused_total"] >= before + 2

    (public,) = [
        line.split()[1]
        for line in (remote.keys / "clients/late.key").read_text().splitlines()
        if line.startswith("public")
    ]
    with (remote.keys / "data.keys").open("a") as allowed:
        allowed.write(f"late {public}\n")
    with pitstop.Client(data=remote.data, key=remote.key("late"), timeout=DEADLINE_S) as client:
        assert len(client.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4
        keygen(remote.keys, "--remove", "late")

        def is_refused():
            try:
                client.tokenize("Once")
            except pitstop.PitstopError as error:
                return error.code == "permission_denied" and "no longer allowed" in error.message
            return False

        wait_until(is_refused, "a key that was taken off to be refused")
    remote.check_served()


def test_a_key_of_the_data_door_does_not_open_the_admin_door(remote):
    with pitstop.Client(data=remote.data, key=remote.key("worker"), timeout=DEADLINE_S) as client:
        assert len(client.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4
    assert refusal(remote, "worker", door="admin") == "permission_denied"
    assert remote.listener(remote.admin)["keys_refused_total"] > 0
    assert remote.listener()["keys_refused_total"] == 0
    remote.check_served()


def test_a_client_that_trusts_another_tree_gets_no_answer(remote, place):
    keygen(place / "other")
    keygen(place / "other", "--client", "stranger")
    before = remote.listener()["handshakes_failed_total"]
    with pytest.raises(pitstop.PitstopError) as refused:
        pitstop.Client(data=remote.data, key=str(place / "other/clients/stranger.key"), timeout=SHORT_S)
    assert refused.value.code == "unavailable"
    wait_until(lambda: remote.listener()["handshakes_failed_total"] > before, "its failure to be counted")
    remote.check_served()


def test_without_a_key_nobody_speaks(remote, place):
    with pytest.raises(pitstop.PitstopError, match="needs a key"):
        pitstop.Client(data=remote.data)
    done = run("status", *remote.flags()[:4])
    assert done.returncode == 2 and "--key FILE is missing" in done.stderr
    before = remote.listener()["handshakes_failed_total"]
    plain = zmq.Context.instance().socket(zmq.DEALER)  # without a key
    plain.linger = 0
    plain.connect(remote.data)
    plain.send_multipart([b"hello", b"\x81\xa8protocol\x01"])
    # libzmq tries again or gives up, depending on whether it sees the other mechanism or the
    # connection's end first.
    wait_until(lambda: remote.listener()["handshakes_failed_total"] > before, "its failure to be counted")
    assert not plain.poll(0)
    plain.close()
    remote.check_served()


GARBAGE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "an old ZMTP": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x00" + bytes(64),
    "a NULL greeting": b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04\x19\x05READY" + bytes(19),
    "a PLAIN greeting": b"\xff" + bytes(8) + b"\x7f\x03\x00PLAIN" + bytes(47),
    "a large first frame": b"\xff"
    + bytes(8)
    + b"\x7f\x03\x01CURVE"
    + bytes(47)
    + b"\x06"
    + (1 << 40).to_bytes(8, "big"),
}


def test_garbage_on_the_port_is_ended_and_counted_and_nothing_else_happens(remote):
    before = remote.listener()["handshakes_failed_total"]
    for name, data in GARBAGE.items():
        with socket.create_connection(("127.0.0.1", remote.port), timeout=DEADLINE_S) as connection:
            connection.sendall(data)
            try:
                while connection.recv(4096):
                    pass
            except ConnectionResetError:
                pass
            except TimeoutError:
                raise AssertionError(f"{name} was kept") from None
    wait_until(lambda: remote.listener()["handshakes_failed_total"] == before + len(GARBAGE), "all to be counted")
    remote.check_served()


def test_handshakes_that_are_never_finished_keep_nobody_out_for_long(remote):
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(47)
    with remote.client() as honest:
        opened = []
        try:
            for _ in range(NUM_HALF_OPEN):
                opened.append(socket.create_connection(("127.0.0.1", remote.port), timeout=DEADLINE_S))
                try:
                    opened[-1].sendall(greeting)
                except (ConnectionResetError, BrokenPipeError):
                    pass  # more connections than the door accepts
            full = remote.listener()
            assert full["connections"] <= full["connections_max"]
            assert full["refused_total"] > 0, full
            assert len(honest.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4
            # The door itself ends the silent connections.
            wait_until(lambda: remote.listener()["connections"] < 10, "silent connections to be ended")
            remote.check_served()
        finally:
            for connection in opened:
                connection.close()
        assert len(honest.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4


def test_weights_in_shared_memory_are_refused_by_name_from_elsewhere(remote):
    with remote.client() as client:
        for source, named in (
            ({"kind": "ipc", "handles": {"CPU-0-0": "ipc://@nobody"}}, "ipc"),
            ({"kind": "tensors", "format": "pickle", "payloads": [{"data": b"x"}]}, "pickle"),
            (
                {
                    "kind": "tensors",
                    "format": "vllm_ipc",
                    "payloads": [{"data": b"x"}],
                    "tensors": [{"name": "a", "dtype": "BF16", "shape": [1]}],
                },
                "vllm_ipc",
            ),
        ):
            with pytest.raises(pitstop.PitstopError) as refused:
                client.call("admin", "update_weights", update={"source": source})
            assert refused.value.code == "unsupported", refused.value
            assert f"a source of {named} uses shared memory" in refused.value.message
    done = run("push", *remote.flags(), "bard")
    assert done.returncode == 1 and "uses shared memory" in done.stderr, done
    remote.check_served()


def test_a_message_over_the_limit_costs_its_sender_the_connection_and_nobody_else(remote, monkeypatch):
    monkeypatch.setattr(pitstop.wire, "MESSAGE_BYTES_MAX", 1 << 30)  # so that this client sends messages of any size
    with remote.client() as honest, remote.client() as large:
        with pytest.raises(pitstop.PitstopError) as lost:
            large.call("data", "tokenize", timeout=DEADLINE_S, text="x" * (17 << 20))
        assert lost.value.code == "unavailable"
        assert len(honest.generate("Once", max_new_tokens=4, **GREEDY).result().tokens) == 4


@pytest.mark.parametrize("flag", ["--tcp-door", "--admin-tcp-door"])
def test_without_keys_no_tcp_door_is_opened(place, flag):
    refused = run("serve", "--no-http", "--run-dir", place / "tree", flag, "127.0.0.1:0")
    assert refused.returncode == 2
    assert "--door-keys" in refused.stderr and "keygen" in refused.stderr


def test_keys_that_others_can_read_and_places_that_are_none_are_refused_in_a_line(place, keys):
    def start(*flags):
        ended = run("serve", "--no-http", "--run-dir", place / "tree", "--door-keys", keys, *flags)
        (line,) = ended.stderr.splitlines()
        return ended.returncode, line

    code, line = start("--tcp-door", "somewhere:1")
    assert code == 3 and "numeric address" in line, line
    code, line = start("--tcp-door", "127.0.0.1")
    assert code == 2 and "HOST:PORT" in line, line
    taken = socket.create_server(("127.0.0.1", 0))
    code, line = start("--tcp-door", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 3 and "in use" in line, line
    (keys / "server.key").chmod(0o644)
    code, line = start("--tcp-door", "127.0.0.1:0")
    assert code == 3 and "chmod 600" in line, line
