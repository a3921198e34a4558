"""An asyncio engine's calls about adapters (LoRA)."""

from __future__ import annotations

import dataclasses
import enum
import json
import pathlib
from typing import Any, Mapping, Optional, Union, cast

from .aio import AsyncClient, off_loop
from .arrays import NamedTensors, unflattened, weights_of
from .calls import CALL_TIMEOUT_S, UPDATE_TIMEOUT_S
from .client import Client
from .errors import PitstopError
from .outputs import Adapter, Update, adapters_of, update_of
from .push import WeightPusher


def config_text(config: Any) -> str:
    """The text of PEFT's adapter_config.json, from a mapping or a LoraConfig."""
    if isinstance(config, str):
        return config
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping or PEFT's LoraConfig, not {type(config).__name__}")

    def written(value: Any) -> Any:
        if isinstance(value, (set, frozenset, tuple)):
            return sorted(value)
        if isinstance(value, enum.Enum):
            return value.value
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        return str(value)

    return json.dumps(dict(config), default=written)


class AdapterCalls:
    """A mixin for AsyncEngine, which has the connections."""

    _doors: dict[str, Any]
    _blocking: Optional[Client]

    def _open(self) -> AsyncClient:
        raise NotImplementedError

    async def load_adapter(
        self,
        name: str,
        adapter: Union[str, pathlib.Path, NamedTensors],
        config: Any = None,
        *,
        label: str = "",
        policy: str = "finish",
        pinned: bool = False,
        partial: bool = False,
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Update:
        """Loads an adapter, or replaces the one of this name, while generation continues. New requests that name it use
        the new version.

        adapter  a directory as PEFT writes it, which the workers can read; or its tensors: (name, tensor) pairs or a
                 dict, of NumPy or torch, as peft.get_peft_model_state_dict(model) returns them
        config   with tensors: the adapter's LoraConfig, or a mapping with its keys
        partial  only some tensors are given; the other tensors and the config are those of the version that serves
        policy   what happens to open requests that have the version that this one replaces: finish (end with it), keep
                 (continue with the new one from the next token, with their KV) or recompute (their KV is computed again)
        pinned   with --adapter-memory: it is never evicted
        update   further fields of docs/protocol.md's UpdateSpec: digest, base_digest, manifest, allow_nonfinite

        PitstopError: nothing changed; the message names the tensor or the key.
        """
        update["adapter_policy"] = policy
        update["adapter_pinned"] = pinned
        update["partial"] = partial
        if config is not None:
            update["adapter_config"] = config_text(config)
        if isinstance(adapter, (str, pathlib.Path)):
            path = str(pathlib.Path(adapter).absolute())
            reply = await self._open().load_adapter(name, path, label=label, timeout=timeout, **update)
            return update_of(reply)
        if config is None and not partial:
            raise TypeError("config: the tensors of an adapter need its LoraConfig, or a mapping with its keys")
        weights = weights_of(adapter)
        self._open()

        def push() -> dict[str, Any]:
            if self._blocking is None:
                self._blocking = Client(**self._doors, name="engine")
            return WeightPusher(self._blocking).push(
                weights,
                digests=False,
                label=label,
                adapter=name,
                timeout=timeout,
                **update,
            )

        return update_of(await off_loop(push))

    async def rollback_adapter(self, name: str, policy: str = "finish", timeout: float = UPDATE_TIMEOUT_S) -> Update:
        """Returns to the version before the last load of the name, until its next load begins. `policy`: as of
        load_adapter(), for open requests that have the version that serves now."""
        return update_of(await self._open().rollback_adapter(name, policy, timeout))

    async def unload_adapter(self, name: str, timeout: float = UPDATE_TIMEOUT_S) -> None:
        """Unloads an adapter: new requests cannot name it any more. Its memory is freed when the last request that
        uses it ends. Waits for updates in progress."""
        await self._open().unload_adapter(name, timeout)

    async def adapters(self, timeout: float = CALL_TIMEOUT_S) -> list[Adapter]:
        """The adapters that every replica has, by name."""
        return adapters_of(await self._open().status(timeout))

    # ---- SGLang's names ----

    async def load_lora_adapter(
        self, lora_name: str, lora_path: str, pinned: bool = False, timeout: float = UPDATE_TIMEOUT_S
    ) -> Update:
        """Calls load_adapter() with a directory."""
        return await self.load_adapter(lora_name, lora_path, pinned=pinned, timeout=timeout)

    async def load_lora_adapter_from_tensors(
        self,
        lora_name: str,
        tensors: NamedTensors,
        config_dict: Mapping[str, Any],
        load_format: Optional[str] = None,
        pinned: bool = False,
        timeout: float = UPDATE_TIMEOUT_S,
    ) -> Update:
        """Calls load_adapter() with tensors. `load_format`: flattened_bucket if they are in SGLang's FlattenedTensorBucket
        as a dict of flattened_tensor and metadata."""
        if load_format == "flattened_bucket":
            tensors = unflattened(cast(Mapping[str, Any], tensors))
        elif load_format is not None:
            raise PitstopError("unsupported", f"load_format must be None or flattened_bucket, not '{load_format}'")
        return await self.load_adapter(lora_name, tensors, config_dict, pinned=pinned, timeout=timeout)

    async def unload_lora_adapter(self, lora_name: str, timeout: float = UPDATE_TIMEOUT_S) -> None:
        await self.unload_adapter(lora_name, timeout)
