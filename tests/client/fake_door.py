"""A door without a tree behind it, for the Python clients."""

import itertools
import queue
import threading

import msgpack
import zmq

DEADLINE_S = 120.0  # for everything that must happen; no passing test reaches it


class FakeDoor:
    """Answers greetings itself, and leaves every other message to the test."""

    numbers = itertools.count(1)

    def __init__(self, run_dir, greetings=()):
        self.received = queue.Queue()
        self.tree = f"tree {next(self.numbers)}"
        self._greetings = list(greetings)  # errors to answer the first greetings with
        self._to_send = queue.Queue()
        self._is_stopping = False
        self._context = zmq.Context()
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.bind("inproc://wake")
        self._sockets = {}
        for door in ("data", "admin"):
            socket = self._context.socket(zmq.ROUTER)
            socket.linger = 1000
            socket.bind(f"ipc://{run_dir}/{door}.sock")
            self._sockets[door] = socket
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def take(self, kind):
        """(peer, body) of the next message, which must be of this type."""
        door, peer, got, body = self.received.get(timeout=DEADLINE_S)
        assert got == kind, (got, body)
        assert body.pop("tree") == self.tree
        return peer, body

    def send_raw(self, door, peer, *frames):
        self._to_send.put((door, [peer, *frames]))
        self._wake_out.send(b"")

    def send(self, peer, kind, door="data", **body):
        self.send_raw(door, peer, kind.encode(), msgpack.packb(body))

    def chunk(self, peer, rid, text="", finish=None, **fields):
        chunk = {"rid": rid, "text": text, **fields}
        if finish:
            chunk["finish"] = finish
        self.send(peer, "outputs", chunks=[chunk])

    def die(self):
        """Ends like a process that dies: sent messages are delivered, then the connections close."""
        self._is_stopping = True
        self._wake_out.send(b"")
        self._thread.join()
        self._wake_out.close()
        self._context.term()

    def _run(self):
        wake = self._context.socket(zmq.PAIR)
        wake.connect("inproc://wake")
        poller = zmq.Poller()
        for socket in [wake, *self._sockets.values()]:
            poller.register(socket, zmq.POLLIN)
        is_last = False
        while not is_last:
            is_last = self._is_stopping
            for socket, _ in poller.poll(0 if is_last else 10_000):
                if socket is wake:
                    wake.recv()
                    continue
                peer, kind, body = socket.recv_multipart()
                body = msgpack.unpackb(body, strict_map_key=False)
                if kind != b"hello":
                    door = next(name for name, each in self._sockets.items() if each is socket)
                    self.received.put((door, peer, kind.decode(), body))
                elif self._greetings:
                    error = msgpack.packb(self._greetings.pop(0))
                    socket.send_multipart([peer, b"error", error])
                else:
                    info = {"protocol": 3, "tree": self.tree, "model": "fake", "unheard_of": 1}
                    reply = msgpack.packb(info)
                    socket.send_multipart([peer, b"hello_reply", reply])
            while not self._to_send.empty():
                door, frames = self._to_send.get()
                self._sockets[door].send_multipart(frames)
        for socket in [wake, *self._sockets.values()]:
            socket.close()
