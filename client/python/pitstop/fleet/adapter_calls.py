"""An asyncio fleet's calls about adapters (LoRA)."""

from __future__ import annotations

import pathlib
from typing import Any, Mapping, Optional, Union

from ..adapter_calls import config_text
from ..aio import off_loop
from ..calls import UPDATE_TIMEOUT_S
from ..digests import text_digest
from ..errors import PitstopError
from .orders import Adapter, Outcome
from .tree_adapters import UNLOAD

# Arguments of AsyncEngine.load_adapter with which a replica could not load the adapter from its directory again.
NOT_LOADED_AGAIN = ("partial", "base_digest", "allow_nonfinite")


class FleetAdapterCalls:
    """A mixin for AsyncFleet, which has the connections."""

    def _open(self) -> Any:
        raise NotImplementedError

    async def _update(self, payload: Mapping[str, Any], timeout: float, uid: Optional[str] = None) -> Outcome:
        raise NotImplementedError

    async def load_adapter(
        self,
        name: str,
        adapter: Union[str, pathlib.Path],
        config: Any = None,
        *,
        label: str = "",
        policy: str = "finish",
        pinned: bool = False,
        timeout: float = UPDATE_TIMEOUT_S,
        **update: Any,
    ) -> Outcome:
        """Loads an adapter on every replica, or replaces the one of this name, from a directory that every machine can
        read. When this returns, every replica serves the adapter. After a PitstopError no replica does; the error's
        `reply` is the Outcome. A replica that joins later loads the same directory, if its tensors are unchanged.

        The other arguments are those of AsyncEngine.load_adapter, except those of NOT_LOADED_AGAIN.
        """
        for argument in NOT_LOADED_AGAIN:
            if update.get(argument):
                raise PitstopError(
                    "unsupported",
                    f"{argument}: a fleet has none, because a replica that joins later loads the whole directory and checks "
                    "all its values",
                )
        if not isinstance(adapter, (str, pathlib.Path)):
            raise TypeError(
                f"adapter must be a directory that every machine can read, not {type(adapter).__name__}: a replica that joins "
                "later loads it from there"
            )
        path = pathlib.Path(adapter).absolute()
        payload = {
            "path": str(path),
            "adapter": name,
            **(await self._configuration(path) if config is None else {"adapter_config": config_text(config)}),
            "adapter_policy": policy,
            "adapter_pinned": pinned,
            "label": label,
            **update,
        }
        return await self._update(payload, timeout)

    async def _configuration(self, path: pathlib.Path) -> dict[str, str]:
        """Every replica reads the directory's configuration itself, and refuses it if its text is not the one here."""
        try:
            text = await off_loop((path / "adapter_config.json").read_bytes)
        except OSError as error:
            raise PitstopError("not_found", f"{path}: {error.strerror}: {error.filename}") from None
        return {"adapter_config_digest": text_digest(text)}

    async def unload_adapter(self, name: str, timeout: float = UPDATE_TIMEOUT_S) -> Outcome:
        """Unloads an adapter on every replica: new requests cannot name it any more."""
        return await self._update({"adapter": name, UNLOAD: True}, timeout)

    async def adapters(self) -> list[Adapter]:
        """The adapters of the fleet, by name."""
        await self._open().refresh()
        committed = self._open().view["committed"]
        return list(committed.adapters) if committed is not None else []
