"""torch's own TCPStore as a trainer serves it, in a process of its own: its constructor waits for
the workers, and in torch 1.x holds the interpreter's lock meanwhile.

    torch_store.py PORT WORLD_SIZE STYLE     STYLE: sglang (group "g") or vllm

Prints "joined" once all have counted in, publishes an id, and ends with its standard input.
"""

import datetime
import pickle
import sys

import torch

import torch_sender

if __name__ == "__main__":
    port, world_size, style = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = torch.distributed.TCPStore("127.0.0.1", port, world_size, True, timeout=datetime.timedelta(seconds=60))
    print("joined", flush=True)
    if style == "sglang":
        prefixed = torch.distributed.PrefixStore("g", store)
        for prefix in ("g/", "cuda/"):
            prefixed = torch.distributed.PrefixStore(prefix, prefixed)
        prefixed.set("0", "i" * 128)
    else:
        store.set("broadcast_from/0/0", pickle.dumps(torch_sender.unique_id_class()()))
    sys.stdin.read()
