"""Many trees on Ray, one update for all of them, and requests that survive machines. Needs Ray (pip install
ray). The rules of its updates (coordinator, participant, orders, routing) need no package.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["AsyncFleet", "Fleet", "start_ray"]

if TYPE_CHECKING:
    from .fleet import AsyncFleet, Fleet, start_ray


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import fleet

        return getattr(fleet, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
