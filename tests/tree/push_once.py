"""One push into a running tree, in a process of its own, so that a test may kill it at any moment.

    push_once.py RUN_DIR MODEL_DIR KIND     KIND: push, session, broadcast, checkpoint_engine

Exit code 0: the tree said that the new version is in effect.
"""

import json
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
    "checkpoint_engine": checkpoint_engine,
}

if __name__ == "__main__":
    with pitstop.Client(sys.argv[1]) as tree:
        KINDS[sys.argv[3]](tree, load(sys.argv[2]))
