"""One push into a running tree, in a process of its own, so that a test may kill it at any moment.

    push_once.py RUN_DIR MODEL_DIR KIND

KIND: push (NumPy), adopted (the C++ command), session, broadcast, sparse, and with PyTorch:
checkpoint_engine, handles.

Exit code 0: the tree answered that the new version is in effect.
"""

import json
import os
import pathlib
import struct
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

import numpy  # noqa: E402  (after the path)

import pitstop  # noqa: E402
from pitstop.broadcast import HostBroadcast  # noqa: E402
from pitstop.push import WeightPusher  # noqa: E402


def load(directory):
    """The checkpoint's tensors as NumPy has them: bfloat16 as uint16."""
    data = (pathlib.Path(directory) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {
        name: numpy.frombuffer(
            data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]],
            dtype=numpy.uint16,
        ).reshape(entry["shape"])
        for name, entry in header.items()
    }


def push_adopted(run_dir, model):
    """Replaces this process by the command, so that a kill hits the command."""
    cli = ROOT / os.environ.get("PITSTOP_BUILD", "build/cpu") / "bin/pitstop_cli"
    os.execv(cli, [cli, "push", model, "--run-dir", run_dir, "--adopt", "--json"])


def infos(tensors):
    return [{"name": n, "dtype": "BF16", "shape": list(a.shape)} for n, a in tensors.items()]


def push(client, tensors):
    WeightPusher(client, bucket_bytes=400_000, stall=20).push(tensors)


def session(client, tensors):
    number = client.begin_update(idle_timeout=5)["session"]
    items = list(tensors.items())
    for i in range(0, len(items), 10):
        part = dict(items[i : i + 10])
        data = b"".join(array.tobytes() for array in part.values())
        source = {"kind": "tensors", "format": "flattened", "tensors": infos(part)}
        client.update_bucket({**source, "payloads": [{"data": data}]}, session=number)
    client.commit_weights(session=number)


def broadcast(client, tensors):
    tp = len([w for r in client.status()["replicas"] for w in r["workers"]])
    name = f"g{time.monotonic_ns()}"
    with HostBroadcast(name, num_workers=tp) as group:
        joined = threading.Thread(target=client.init_group, kwargs=group.spec())
        joined.start()
        group.accept(20)
        joined.join()
        source = {"kind": "distributed", "group": name, "format": "each", "tensors": infos(tensors)}
        failures = []

        def update():
            try:
                client.update_weights(source=source)
            except pitstop.PitstopError as error:
                failures.append(error)

        thread = threading.Thread(target=update)
        thread.start()
        for array in tensors.values():
            group.broadcast(array, 20)
        thread.join()
        if failures:
            raise failures[0]
        client.destroy_group(name)


def sparse(client, tensors):
    """Sends all elements of a few tensors as a sparse update of the serving version, and the other tensors
    whole, in the same session."""
    base = client.weight_digests()["digest"]
    number = client.begin_update(idle_timeout=5, partial=True, base_digest=base)["session"]
    whole = {n: a for n, a in tensors.items() if "norm" not in n}
    data = b"".join(array.tobytes() for array in whole.values())
    flattened = {"kind": "tensors", "format": "flattened"}
    client.update_bucket({**flattened, "tensors": infos(whole), "payloads": [{"data": data}]}, session=number)
    few = {n: a for n, a in tensors.items() if "norm" in n}
    data = b"".join(numpy.arange(a.size, dtype=numpy.int32).tobytes() + a.tobytes() for a in few.values())
    client.update_bucket(
        {
            "kind": "tensors",
            "format": "sparse",
            "tensors": infos(few),
            "num_updates": [a.size for a in few.values()],
            "payloads": [{"data": data}],
        },
        session=number,
    )
    client.commit_weights(session=number)


def handles(client, _):
    """A pickle per rank of tensors in torch's shared memory."""
    import torch_sender

    tensors = {n: t.share_memory_() for n, t in torch_sender.load(sys.argv[2]).items()}
    tp = len(client.status()["replicas"][0]["workers"])
    pickles = [bytes(torch_sender.ForkingPickler.dumps(list(tensors.items()))) for _ in range(tp)]
    client.update_weights(source={"kind": "tensors", "format": "pickle", "payloads": [{"data": p} for p in pickles]})


def checkpoint_engine(client, _):
    import torch_sender

    devices = [w["device_uuid"] for r in client.status()["replicas"] for w in r["workers"]]
    server = torch_sender.ParameterServer(devices, bucket_bytes=600_000)
    failures = []

    def update():
        try:
            client.update_weights(source={"kind": "ipc", "handles": server.handles, "stall_ms": 20_000})
        except pitstop.PitstopError as error:
            failures.append(error)

    thread = threading.Thread(target=update)
    thread.start()
    server.update(torch_sender.load(sys.argv[2]))
    thread.join()
    if failures:
        raise failures[0]


KINDS = {
    "push": push,
    "session": session,
    "broadcast": broadcast,
    "sparse": sparse,
    "handles": handles,
    "checkpoint_engine": checkpoint_engine,
}

if __name__ == "__main__":
    if sys.argv[3] == "adopted":
        push_adopted(*sys.argv[1:3])
    with pitstop.Client(sys.argv[1]) as tree:
        KINDS[sys.argv[3]](tree, load(sys.argv[2]))
