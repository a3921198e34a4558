"""An asyncio engine's calls about weights and memory."""

from __future__ import annotations

import base64
from typing import Any, Mapping, Optional, Sequence, Union

import numpy

from .aio import AsyncClient, off_loop
from .arrays import NamedTensors, unflattened, weights_of
from .calls import CALL_TIMEOUT_S, UPDATE_TIMEOUT_S
from .client import Client
from .errors import PitstopError
from .local_tree import bundled_or_path
from .not_served import check_arguments
from .outputs import Update, WeightDigests, digests_of, update_of
from .progress import Progress
from .push import WeightPusher

GROUP = "weight_update_group"  # SGLang's default name
VLLM_GROUP = "vllm_weight_transfer"
TAGS = ("weights", "kv_cache")


def _tags(tags: Union[str, Sequence[str], None]) -> Optional[list[str]]:
    """The tags that the tree has; SGLang's cuda_graph is ignored. None: all."""
    if tags is None:
        return None
    given = [tags] if isinstance(tags, str) else list(tags)
    for tag in given:
        if tag not in (*TAGS, "cuda_graph"):
            raise PitstopError("invalid_argument", f"tags must be weights or kv_cache, not '{tag}'")
    return [tag for tag in given if tag in TAGS]


def _infos(names: Sequence[str], dtypes: Sequence[Any], shapes: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    if not len(names) == len(dtypes) == len(shapes):
        raise PitstopError(
            "invalid_argument",
            f"{len(names)} names, {len(dtypes)} dtypes and {len(shapes)} shapes: give as many of each",
        )
    return [
        {"name": name, "dtype": str(dtype).removeprefix("torch."), "shape": [int(extent) for extent in shape]}
        for name, dtype, shape in zip(names, dtypes, shapes)
    ]


class WeightCalls:
    """A mixin for AsyncEngine, which has the connections."""

    _doors: dict[str, Any]
    _use_tqdm: Optional[bool]
    _blocking: Optional[Client]

    def _open(self) -> AsyncClient:
        raise NotImplementedError

    # ---- updates ----

    async def update_weights(
        self,
        named_tensors: NamedTensors,
        label: str = "",
        *,
        partial: bool = False,
        kv_policy: str = "keep",
        digests: bool = True,
        use_tqdm: Optional[bool] = None,
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Update:
        """Sends a whole version, as model.named_parameters() returns it, while generation continues. When this returns,
        every rank serves the version; the switch is between two passes. After a PitstopError no rank does.

        named_tensors  (name, tensor) pairs or a dict, of NumPy or torch: float32, float16, bfloat16. They are sent
                       through memory that all workers share, without a pickle. Workers of the tensor's GPU read it
                       in place, by CUDA IPC; it is copied for workers of other GPUs, through the host if necessary
        partial        send only some tensors; the others stay
        kv_policy      what happens to running requests: keep, recompute, drain or abort
        digests        compute the digests of bfloat16 tensors and declare them
        update         further fields of docs/protocol.md's UpdateSpec: epoch, digest, mode, allow_nonfinite
        """
        more = {"label": label, "partial": partial, "kv_policy": kv_policy, "digests": digests, **update}
        try:
            return await self._push(named_tensors, use_tqdm, timeout, **more)
        except PitstopError as error:
            if partial or "' is missing" not in error.message:
                raise
            hint = "; update_weights_from_tensor, or partial=True, updates a part of the weights"
            raise PitstopError(error.code, error.message + hint, error.reply) from None

    async def update_weights_from_tensor(
        self,
        named_tensors: Any,
        load_format: Optional[str] = None,
        flush_cache: bool = True,
        *,
        label: str = "",
        weight_version: Optional[str] = None,
        abort_all_requests: bool = False,
        use_tqdm: Optional[bool] = None,
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> Update:
        """SGLang's call, for some of the tensors. In a paused tree, or one without weights, several calls take
        effect together (docs/weights.md); tensors that are not sent stay. `flush_cache` has no effect: prefixes of
        older weights are never shared silently."""
        if load_format == "flattened_bucket":
            named_tensors = unflattened(named_tensors)
        elif load_format not in (None, "direct"):
            raise PitstopError(
                "unsupported", f"load_format must be None, direct or flattened_bucket, not '{load_format}'"
            )
        if abort_all_requests:
            await self._open().abort(all=True)
        more = {"label": weight_version or label, "partial": True, "session": False}
        return await self._push(named_tensors, use_tqdm, timeout, **more)

    async def _push(
        self, named_tensors: NamedTensors, use_tqdm: Optional[bool], timeout: float, **update: Any
    ) -> Update:
        weights = weights_of(named_tensors)
        self._open()
        is_shown = use_tqdm if use_tqdm is not None else self._use_tqdm

        def push() -> dict[str, Any]:
            if self._blocking is None:
                self._blocking = Client(**self._doors, name="engine")
            total = sum(each.nbytes for each in weights.values())
            with Progress("updating", total, is_shown, "B") as progress:
                return WeightPusher(self._blocking).push(weights, on_progress=progress.go_to, timeout=timeout, **update)

        return update_of(await off_loop(push))

    async def _update(self, source: Mapping[str, Any], timeout: float, **update: Any) -> Update:
        return update_of(await self._open().update_weights(source=dict(source), timeout=timeout, **update))

    async def update_weights_from_disk(
        self,
        model_path: str,
        load_format: Optional[str] = None,
        *,
        label: str = "",
        weight_version: Optional[str] = None,
        kv_policy: str = "keep",
        abort_all_requests: bool = False,
        flush_cache: bool = True,
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Update:
        """Loads a checkpoint directory that the workers can read, or a bundled model by name."""
        if load_format not in (None, "auto", "safetensors"):
            raise PitstopError("unsupported", f"load_format must be auto or safetensors, not '{load_format}'")
        if abort_all_requests:
            await self._open().abort(all=True)
        source = {"kind": "disk", "path": bundled_or_path(model_path)}
        label = weight_version or label
        return await self._update(source, timeout, label=label, kv_policy=kv_policy, **update)

    async def init_weights_update_group(
        self,
        master_address: str,
        master_port: Union[int, str],
        rank_offset: int,
        world_size: int,
        group_name: str = GROUP,
        backend: str = "nccl",
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> None:
        """Every worker joins the trainer's group. backend: nccl or host; pitstop.broadcast is the trainer's
        side of host."""
        await self._open().init_group(
            group_name,
            backend,
            timeout,
            address=master_address,
            port=int(master_port),
            rank_offset=rank_offset,
            world_size=world_size,
        )

    async def destroy_weights_update_group(self, group_name: str = GROUP, timeout: float = UPDATE_TIMEOUT_S) -> None:
        await self._open().destroy_group(group_name, timeout)

    async def update_weights_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        group_name: str = GROUP,
        flush_cache: bool = True,
        *,
        load_format: Optional[str] = None,
        label: str = "",
        weight_version: Optional[str] = None,
        abort_all_requests: bool = False,
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Update:
        """Receives tensors that the trainer broadcasts while this waits: one broadcast per tensor, or one for all
        (load_format="flattened_bucket"). Several calls are one update as in update_weights_from_tensor."""
        if load_format not in (None, "flattened_bucket"):
            raise PitstopError("unsupported", f"load_format must be None or flattened_bucket, not '{load_format}'")
        if abort_all_requests:
            await self._open().abort(all=True)
        source = {
            "kind": "distributed",
            "group": group_name,
            "format": "flattened" if load_format else "each",
            "tensors": _infos(names, dtypes, shapes),
        }
        update.setdefault("partial", True)
        return await self._update(source, timeout, label=weight_version or label, **update)

    async def update_weights_from_ipc(
        self,
        zmq_handles: Mapping[str, str],
        flush_cache: bool = True,
        *,
        label: str = "",
        weight_version: Optional[str] = None,
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> Update:
        """Receives weights from checkpoint-engine's sockets, by device; every tensor must be sent."""
        return await self._update({"kind": "ipc", "handles": dict(zmq_handles)}, timeout, label=weight_version or label)

    async def update_weight_version(
        self, label: str, abort_all_requests: bool = False, timeout: float = CALL_TIMEOUT_S
    ) -> None:
        """Gives the serving version another label."""
        await self._open().set_weight_label(label, abort_all_requests, timeout)

    async def rollback_weights(self, kv_policy: str = "keep", timeout: float = UPDATE_TIMEOUT_S) -> Update:
        """Returns to the previous version, as long as its copy is retained."""
        return update_of(await self._open().rollback_weights(kv_policy, timeout))

    # ---- what is resident ----

    async def weight_digests(self, timeout: float = UPDATE_TIMEOUT_S) -> WeightDigests:
        """Computes the digests of the resident weights now, on every rank."""
        return digests_of(await self._open().weight_digests(timeout))

    async def get_weights_by_name(
        self, name: str, truncate_size: Optional[int] = None, timeout: float = UPDATE_TIMEOUT_S
    ) -> numpy.ndarray:
        """Returns the whole tensor as float32, from its shards; `truncate_size`: only its first rows."""
        reply = await self._open().get_weights(name, timeout)
        words = numpy.frombuffer(reply["data"], dtype=numpy.uint16).astype(numpy.uint32) << 16
        array = words.view(numpy.float32).reshape(reply["tensor"]["shape"])
        return array if truncate_size is None else array[:truncate_size]

    async def get_server_info(self, timeout: float = CALL_TIMEOUT_S) -> dict[str, Any]:
        """Returns SGLang's keys that exist here, and the whole `status` (docs/protocol.md)."""
        client = self._open()
        status = await client.status(timeout)
        info = client.info
        first = status["replicas"][0]
        return {
            "version": info.server.rpartition(" ")[2],
            "model_path": info.model_path,
            "served_model_name": info.model,
            "tp_size": info.tp,
            "dp_size": info.replicas,
            "context_length": info.context_len,
            "vocab_size": info.vocab_size,
            "page_size": first.get("page_size", 0),
            "max_total_num_tokens": first.get("pages_total", 0) * first.get("page_size", 0),
            "max_running_requests": first.get("running_max", 0),
            "weight_version": first.get("label", "") or f"epoch {first.get('epoch', 0)}",
            "weight_epoch": first.get("epoch", 0),
            "weight_digest": first.get("digest", ""),
            "status": status,
        }

    # ---- memory ----

    async def release_memory_occupation(
        self,
        tags: Union[str, Sequence[str], None] = None,
        keep_weights: bool = False,
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> None:
        """Frees memory. With `keep_weights` the weights are restored from host memory; otherwise the next complete
        update replaces them. PitstopError while requests are open without a pause."""
        chosen = _tags(tags)
        if chosen != []:
            await self._open().release_memory(chosen, keep_weights, timeout)

    async def resume_memory_occupation(
        self, tags: Union[str, Sequence[str], None] = None, timeout: float = UPDATE_TIMEOUT_S
    ) -> None:
        """Allocates the memory again, at the same addresses."""
        chosen = _tags(tags)
        if chosen != []:
            await self._open().resume_memory(chosen, timeout)

    async def sleep(
        self,
        level: int = 1,
        mode: str = "abort",
        tags: Union[str, Sequence[str], None] = None,
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> None:
        """vLLM's call: pauses, and gives memory back. Level 0: only pauses; 1: keeps the weights in host memory; 2: discards
        them, until the next complete update."""
        if level not in (0, 1, 2):
            raise PitstopError("invalid_argument", f"level must be 0, 1 or 2, not {level!r}")
        await self._open().pause({"keep": "retract"}.get(mode, mode), timeout=timeout)
        if level > 0:
            await self.release_memory_occupation(tags, keep_weights=level == 1, timeout=timeout)

    async def wake_up(self, tags: Union[str, Sequence[str], None] = None, timeout: float = UPDATE_TIMEOUT_S) -> None:
        """Allocates the memory again; once all of it is resident, generation continues."""
        states = await self._memory_states(timeout)
        wanted = [tag for tag in (_tags(tags) or (TAGS if tags is None else [])) if states.get(tag) == "released"]
        if wanted:
            await self._open().resume_memory(wanted, timeout)
        if "released" not in (await self._memory_states(timeout)).values():
            try:
                await self._open().continue_generation(timeout=timeout)
            except PitstopError as error:
                if error.code != "failed_precondition":  # a tree without weights continues after the next update
                    raise

    async def is_sleeping(self, timeout: float = CALL_TIMEOUT_S) -> bool:
        return "released" in (await self._memory_states(timeout)).values()

    async def _memory_states(self, timeout: float) -> dict[str, str]:
        """{tag: state}; "released" if the tag is released on any replica."""
        states: dict[str, str] = {}
        for replica in (await self._open().status(timeout))["replicas"]:
            for memory in replica.get("memory", []):
                if states.get(memory["tag"]) != "released":
                    states[memory["tag"]] = memory.get("state", "resident")
        return states

    # ---- vLLM's calls to its workers ----

    async def collective_rpc(
        self,
        method: Any,
        timeout: Optional[float] = None,
        args: Sequence[Any] = (),
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> list[Any]:
        """Calls vLLM's methods about weights; each returns None per worker. pitstop's workers are C++ programs, so
        other methods are refused."""
        rpcs = {
            "reload_weights": self._reload_weights,
            "init_weight_transfer_engine": self._init_weight_transfer,
            "update_weights": self._update_by_info,
            "update_weights_from_ipc": self.update_weights_from_ipc,
        }
        if method not in rpcs:
            name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
            raise PitstopError("unsupported", f"collective_rpc: unknown call {name}; accepted are {', '.join(rpcs)}")
        given = dict(kwargs or {})
        if timeout is not None and method != "init_weight_transfer_engine":
            given.setdefault("timeout", timeout)
        await rpcs[method](*args, **given)
        info = self._open().info
        return [None] * (info.tp * info.replicas)

    async def _reload_weights(
        self,
        weights_path: Optional[str] = None,
        is_checkpoint_format: bool = True,
        weight_version: str = "",
        timeout: float = UPDATE_TIMEOUT_S,
        **others: Any,
    ) -> None:
        check_arguments("reload_weights", others)
        if not is_checkpoint_format:
            raise PitstopError(
                "unsupported", "is_checkpoint_format must be True: the names must be those of a checkpoint"
            )
        path = weights_path or self._open().info.model_path
        await self.update_weights_from_disk(path, label=weight_version, timeout=timeout)

    async def _init_weight_transfer(self, init_info: Mapping[str, Any]) -> None:
        """Joins the group of vLLM's nccl backend. An empty `init_info` is that of its ipc backend, and does nothing."""
        if not init_info:
            return
        spec = {"address": init_info.get("master_address", ""), "port": int(init_info.get("master_port", 0))}
        spec.update({name: init_info[name] for name in ("rank_offset", "world_size") if name in init_info})
        spec["rendezvous"] = "vllm"
        if init_info.get("nccl_unique_id_b64"):
            spec.update(unique_id=base64.b64decode(init_info["nccl_unique_id_b64"]))
        await self._open().init_group(VLLM_GROUP, init_info.get("backend", "nccl"), **spec)

    async def _update_by_info(
        self,
        update_info: Union[Mapping[str, Any], Sequence[Mapping[str, Any]]],
        weight_version: str = "",
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> None:
        infos = [update_info] if isinstance(update_info, Mapping) else list(update_info)
        first = infos[0]
        source: dict[str, Any] = {
            "kind": "distributed",
            "group": VLLM_GROUP,
            "format": "flattened" if first.get("packed") else "each",
            "packed_bytes": first.get("packed_buffer_size_bytes", 0) if first.get("packed") else 0,
            "tensors": _infos(first["names"], first["dtype_names"], first["shapes"]),
        }
        if any("ipc_handles_pickled" in info for info in infos):
            payloads = [{"data": base64.b64decode(info["ipc_handles_pickled"])} for info in infos]
            source.update(kind="tensors", format="vllm_ipc", payloads=payloads)
        if first.get("num_updates_list") is not None:
            source.update(format="sparse", num_updates=list(first["num_updates_list"]))
        await self._update(source, timeout, label=weight_version, partial=True)
