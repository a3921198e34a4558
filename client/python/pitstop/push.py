"""Pushes NumPy arrays into a running tree: pitstop's own push protocol, without PyTorch.

    with pitstop.Client(run_dir) as client:
        report = WeightPusher(client).push({"model.norm.weight": array, ...}, label="step 12")

Arrays are float32, float16, or bfloat16 as uint16 (or ml_dtypes' bfloat16). Buckets are in
memory that all workers of the machine share: each is filled once, while the workers read
earlier buckets. Arrays that are already in shared memory are read in place (`holders`), and so are PyTorch's
tensors in a GPU's memory (arrays.weights_of, cuda_tensors.py). Nothing takes effect before every
rank has every byte and the digests agree.
"""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import threading
import time
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Union

import msgpack
import numpy
import zmq

from .arrays import OnGpu, Weight, in_host
from .client import Client
from .cuda_tensors import CudaTensor, Lender, buckets_of, can_be_lent, visible_gpus
from .digests import dtype_name, tensor_digest
from .errors import PitstopError
from .shared_memory import SharedFile, find_shared_file

PROTOCOL = 1
# The session of an abandoned push blocks others for this long. Less time passes between two calls of a push.
IDLE_MAX_S = 10.0
ALIGN = 64
BUCKETS_MAX = 4  # buckets in progress: filled, and not yet read by every worker
READ_BYTES = 32 << 20  # bytes of buckets in shared memory that workers may be asked to read at once
MESSAGE_MAX = 1024  # characters of a message to workers
F_ADD_SEALS, F_SEAL_SHRINK, F_SEAL_GROW = 1033, 2, 4

_numbers = itertools.count()

Tensors = Mapping[str, Weight]


# The prefixes that models with vision put before the text's names, and the names of parts that no
# model here has.
TEXT, OTHER_PARTS = "model.language_model.", ("model.visual.", "mtp.")
FUSED = (".experts.gate_up_proj", ".experts.down_proj")
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def manifest_of(tensors: Tensors) -> list[dict[str, Any]]:
    """The manifest (docs/protocol.md's TensorInfo), with digests and a text model's names. Only tensors that are
    resident as they are sent have entries: decay rates in fp32, all others in bfloat16.

    Two kinds of tensors are left out. A tensor with all experts of a layer has no entry, because digests are of single
    experts. A head that equals the embedding has none, because a tied model has one tensor and compares the two itself.
    """
    manifest = []
    for name, array in tensors.items():
        if name.endswith(FUSED) or name.startswith(OTHER_PARTS):
            continue
        dtype = dtype_name(array)
        if name.endswith(".A_log"):  # a number for each head
            array, dtype = _as_f32(array.in_host() if isinstance(array, OnGpu) else array), "F32"
        elif dtype != "BF16":
            continue
        name = "model." + name[len(TEXT) :] if name.startswith(TEXT) else name
        manifest.append({"name": name, "dtype": dtype, "shape": list(array.shape), "digest": tensor_digest(array)})
    declared = {each["name"]: each for each in manifest}
    if HEAD in declared and declared[HEAD]["digest"] == declared.get(EMBEDDING, {}).get("digest"):
        manifest.remove(declared[HEAD])
    return manifest


def _as_f32(array: numpy.ndarray) -> numpy.ndarray:
    if dtype_name(array) == "BF16":
        return (array.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return array.astype(numpy.float32)


def lendable(tensors: Tensors, devices: Sequence[str]) -> Tensors:
    """Returns the tensors unchanged if workers on these devices can read the ones in GPUs' memory; otherwise returns
    copies of all tensors in the host's memory."""
    on_gpus = [each for each in tensors.values() if isinstance(each, OnGpu)]
    if not on_gpus or (all(isinstance(each, CudaTensor) for each in on_gpus) and can_be_lent(on_gpus, devices)):
        return tensors
    return in_host(tensors)


class _Memory:
    """A memfd that workers open, sealed against shrinking, so that reading it cannot fail."""

    def __init__(self, size: int):
        self.fd = os.memfd_create("pitstop_push", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
        self.map = mmap.mmap(self.fd, size)
        self.bytes = numpy.frombuffer(self.map, dtype=numpy.uint8)

    def describe(self) -> dict[str, int]:
        return {"pid": os.getpid(), "fd": self.fd, "bytes": len(self.bytes)}

    def close(self) -> None:
        self.bytes = None
        self.map.close()
        os.close(self.fd)


class _Ring:
    """Buckets that are filled in turn. A bucket's memory is free again when every worker has read it."""

    def __init__(self, tensors: Mapping[str, numpy.ndarray], bucket_bytes: int):
        self._tensors = tensors
        self._bucket_bytes = bucket_bytes
        sizes = [_room(array) for array in tensors.values()]
        # Small buckets are still in the cache when workers read them. A tensor that is larger has a bucket of its own.
        self._most = min(max([bucket_bytes, *sizes]), sum(sizes))
        self.under_way_max = BUCKETS_MAX if self._most <= bucket_bytes else 2
        self._memory = _Memory(self.under_way_max * self._most)

    def describe(self) -> dict[str, int]:
        return self._memory.describe()

    def buckets(self) -> Iterator[list[dict[str, Any]]]:
        """Yields the description of each bucket. REQUIRES: workers have read the bucket under_way_max
        before it."""
        for number, bucket in enumerate(_buckets(self._tensors, self._bucket_bytes)):
            entries = []
            for name, array, at in bucket:
                offset = number % self.under_way_max * self._most + at
                flat = numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)
                self._memory.bytes[offset : offset + len(flat)] = flat
                entries.append(_entry(name, array, offset))
            yield entries

    def close(self) -> None:
        self._memory.close()


class _Lying:
    """Buckets of arrays that are already in shared memory: nothing is copied."""

    under_way_max = 2

    def __init__(self, tensors: Mapping[str, numpy.ndarray], file: SharedFile):
        self._tensors = tensors
        self._file = file

    def describe(self) -> dict[str, int]:
        return self._file.describe()

    def buckets(self) -> Iterator[list[dict[str, Any]]]:
        for bucket in _buckets(self._tensors, READ_BYTES):
            yield [_entry(name, array, self._file.offsets[name]) for name, array, _ in bucket]

    def close(self) -> None:
        pass  # the memory belongs to its owner


def _entry(name: str, array: numpy.ndarray, offset: int) -> dict[str, Any]:
    return {"name": name, "dtype": dtype_name(array), "shape": list(array.shape), "offset": offset}


def _room(array: numpy.ndarray) -> int:
    return -(-max(1, array.nbytes) // ALIGN) * ALIGN


class WeightPusher:
    """Pushes weights into a tree. Owns nothing between two pushes. One push at a time per tree.

    holders  processes, by pid. If all tensors are in one file of shared memory that one of these processes has open,
             workers read them in place, and nothing is copied into buckets. Do not change the tensors until the push ends.
    """

    def __init__(self, client: Client, bucket_bytes: int = 8 << 20, stall: float = 60.0, holders: Sequence[int] = ()):
        self._client = client
        self._bucket_bytes = bucket_bytes
        self._stall = stall
        self._holders = holders

    def push(
        self,
        tensors: Tensors,
        *,
        partial: bool = False,
        digests: bool = True,
        session: bool = True,
        on_progress: Optional[Callable[[int, int], None]] = None,
        timeout: float = 600.0,
        **update: Any,
    ) -> dict[str, Any]:
        """Pushes and commits; returns the commit's reply. `update` are further fields of docs/protocol.md's UpdateSpec
        (label, kv_policy, ...). `digests`: declare bfloat16 tensors with their digests. Without a `session` this is
        one call, which a paused tree collects with earlier ones (docs/weights.md). Raises PitstopError; the old
        version then keeps serving."""
        spec = {"partial": partial, **update}
        devices = self._devices()
        tensors = lendable(tensors, devices)
        if digests and session:
            spec["manifest"] = manifest_of(tensors)
        if not session:
            return self._push_buckets(
                devices,
                tensors,
                on_progress,
                timeout,
                lambda source: self._client.update_weights(source=source, timeout=timeout, **spec),
            )
        spec["source"] = {"kind": "buckets"}
        holder = f"a push of process {os.getpid()}"
        number = self._client.begin_update(idle_timeout=IDLE_MAX_S, timeout=timeout, holder=holder, **spec)["session"]
        try:
            self._push_buckets(
                devices,
                tensors,
                on_progress,
                timeout,
                lambda source: self._client.update_bucket(source, session=number, timeout=timeout),
            )
        except BaseException:
            try:
                self._client.drop_stage(session=number)
            except PitstopError:
                pass  # the tree has dropped it already, and said why
            raise
        return self._client.commit_weights(session=number, timeout=timeout)

    def push_bucket(self, tensors: Tensors, session: int, timeout: float = 600.0) -> dict[str, Any]:
        """Pushes some tensors of a session that the caller begins and commits."""
        devices = self._devices()
        return self._push_buckets(
            devices,
            lendable(tensors, devices),
            None,
            timeout,
            lambda source: self._client.update_bucket(source, session=session, timeout=timeout),
        )

    def stage(
        self,
        tensors: Tensors,
        *,
        on_progress: Optional[Callable[[int, int], None]] = None,
        timeout: float = 600.0,
        **update: Any,
    ) -> dict[str, Any]:
        """The first half of a push: every rank receives, checks and holds it until commit_weights or drop_stage.
        `update` are fields of docs/protocol.md's UpdateSpec. An exception of `on_progress` aborts the push."""
        devices = self._devices()
        return self._push_buckets(
            devices,
            lendable(tensors, devices),
            on_progress,
            timeout,
            lambda source: self._client.stage_weights("", source=source, timeout=timeout, **update),
        )

    def _devices(self) -> list[str]:
        return [worker["device_uuid"] for each in self._client.status()["replicas"] for worker in each["workers"]]

    def _push_buckets(self, devices, tensors, on_progress, timeout, ask) -> dict[str, Any]:
        """Pushes buckets to the call ask(source); returns its answer."""
        context = zmq.Context()
        try:
            return self._converse(context, devices, tensors, on_progress, timeout, ask)
        finally:
            context.destroy(linger=0)

    def _converse(self, context, devices, tensors, on_progress, timeout, ask) -> dict[str, Any]:
        sockets, handles = {}, {}
        for device in devices:
            socket = context.socket(zmq.DEALER)
            for user in {os.geteuid(), 0}:  # any user can find an abstract socket, and take a worker's messages
                socket.setsockopt(zmq.IPC_FILTER_UID, user)
            endpoint = f"ipc://@pitstop-push-{os.getpid()}-{next(_numbers)}-{device}.sock"
            socket.bind(endpoint)
            sockets[device], handles[device] = socket, endpoint
        failures: list[BaseException] = []
        answer: dict[str, Any] = {}

        def bucket_call() -> None:
            try:
                answer.update(ask({"kind": "ipc", "handles": handles, "stall_ms": int(self._stall * 1000)}))
            except BaseException as error:
                failures.append(error)

        call = threading.Thread(target=bucket_call)
        call.start()
        arrays, lent = _split(tensors)
        report = _Sent(on_progress, sum(each.nbytes for each in tensors.values()))
        memory = self._memory_of(arrays)
        conversation = _Conversation(sockets, self._stall, failures)
        try:
            conversation.ask("push_open", protocol=PROTOCOL, memory=memory.describe() if memory else {"bytes": 0})
            conversation.answers()
            if memory is not None:
                self._send_arrays(conversation, arrays, memory, report)
            lenders = _send_lent(conversation, devices, lent, report)
            conversation.ask("push_end")
            conversation.answers()
            del lenders  # workers have closed the lent memory
        except BaseException as error:
            if not failures:  # the failure is only here: workers would wait for further messages
                conversation.give_up(error)
            if isinstance(error, PitstopError) and error.code == "aborted":
                call.join(self._stall)  # a worker's stage was dropped: the tree's answer says why
                if failures:
                    raise failures[0] from None
            raise
        finally:
            if not failures and call.is_alive():
                call.join(self._stall)
            if memory is not None:
                memory.close()
        call.join(timeout)
        if failures:
            raise failures[0]
        return answer

    def _memory_of(self, arrays: Mapping[str, numpy.ndarray]) -> Union[None, _Ring, _Lying]:
        if not arrays:
            return None
        file = find_shared_file(arrays, self._holders) if self._holders else None
        return _Ring(arrays, self._bucket_bytes) if file is None else _Lying(arrays, file)

    def _send_arrays(self, conversation, arrays, memory, report) -> None:
        num_asked = 0
        buckets = enumerate(memory.buckets())
        while True:
            if num_asked == memory.under_way_max:  # the oldest bucket's memory is needed
                conversation.answers()
                num_asked -= 1
            number, entries = next(buckets, (0, None))
            if entries is None:
                break
            conversation.ask("push_bucket", bucket=number, tensors=entries)
            num_asked += 1
            report(sum(arrays[entry["name"]].nbytes for entry in entries))
        for _ in range(num_asked):
            conversation.answers()


def _split(tensors: Tensors) -> tuple[dict[str, numpy.ndarray], dict[str, CudaTensor]]:
    """Separates the tensors in the host's memory from those of GPUs."""
    lent = {name: each for name, each in tensors.items() if isinstance(each, CudaTensor)}
    return {name: each for name, each in tensors.items() if name not in lent}, lent


class _Sent:
    """Counts the bytes sent: on_progress(bytes so far, of all)."""

    def __init__(self, on_progress: Optional[Callable[[int, int], None]], total: int):
        self._on_progress = on_progress
        self._sent = 0
        self._total = total

    def __call__(self, num_bytes: int) -> None:
        self._sent += num_bytes
        if self._on_progress is not None:
            self._on_progress(self._sent, self._total)


def _send_lent(conversation, devices, tensors: Mapping[str, CudaTensor], report) -> list[Lender]:
    """Tells each worker the tensors' places in the memory of its own GPU, where the worker reads them. The caller keeps
    the lenders until the push has ended."""
    if not tensors:
        return []
    gpus = visible_gpus()
    buckets = list(buckets_of(tensors))
    lenders = {device: Lender(device, gpus[device], buckets) for device in devices}
    for number, bucket in enumerate(buckets):
        conversation.ask("push_bucket", {d: each.lend(bucket) for d, each in lenders.items()}, bucket=number)
        conversation.answers()
        report(sum(each.nbytes for each in bucket.values()))
    return list(lenders.values())


class _Conversation:
    """Messages to all workers at once; each worker answers every message once, in order."""

    def __init__(self, sockets: Mapping[str, zmq.Socket], stall: float, failures: list):
        self._sockets = sockets
        self._stall = stall
        self._failures = failures

    def ask(self, kind: str, by_device: Optional[Mapping[str, Mapping[str, Any]]] = None, **body: Any) -> None:
        """Sends a message to all workers; `by_device` has further fields for each."""
        deadline = time.monotonic() + self._stall
        for device, socket in self._sockets.items():
            own = by_device[device] if by_device is not None else {}
            frames = [b"", kind.encode(), msgpack.packb({**body, **own})]
            while not socket.poll(20, zmq.POLLOUT):  # its worker has not connected yet
                self._check(deadline, "a worker did not connect in time")
            socket.send_multipart(frames)

    def answers(self) -> list[dict[str, Any]]:
        bodies = []
        deadline = time.monotonic() + self._stall
        for device, socket in self._sockets.items():
            while not socket.poll(20):
                self._check(deadline, f"no answer in time from {device}")
            _, _, body = socket.recv_multipart()
            body = msgpack.unpackb(body)
            if body.get("code"):
                raise PitstopError(body["code"], f"{device}: {body.get('message', '')}")
            bodies.append(body)
        return bodies

    def give_up(self, error: BaseException) -> None:
        """Sends every worker the reason for which no more messages follow. A worker that does not read gets none."""
        code = getattr(error, "code", "aborted")
        body = {"code": code, "message": f"the pusher failed: {type(error).__name__}: {error}"[:MESSAGE_MAX]}
        frames = [b"", b"push_end", msgpack.packb(body)]
        for socket in self._sockets.values():
            if socket.poll(0, zmq.POLLOUT):
                socket.send_multipart(frames)

    def _check(self, deadline: float, what: str) -> None:
        if self._failures:  # the tree has ended the push
            raise self._failures[0]
        if time.monotonic() > deadline:
            raise PitstopError("deadline_exceeded", what)


def _buckets(tensors: Mapping[str, numpy.ndarray], bucket_bytes: int):
    """Lists of (name, array, offset), each of at most that many bytes, or of one larger tensor."""
    bucket, at = [], 0
    for name, array in tensors.items():
        size = _room(array)
        if at + size > bucket_bytes and bucket:
            yield bucket
            bucket, at = [], 0
        bucket.append((name, array, at))
        at += size
    yield bucket
