"""Starts or joins a Ray cluster, finds the cluster of a fleet, and chooses the names of a fleet's actors."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
from typing import Any, Callable, Optional

import ray
from ray._private import ray_constants, services
from ray.exceptions import RayError

from ..errors import PitstopError
from . import ray_tokens
from .relay import NAMESPACE

FIND_S = 5
KV = b"pitstop"  # the namespace in which a cluster keeps the names of its fleets
OBJECT_STORE_BYTES = 256 << 20  # of a cluster that this program starts, by default


def conductor_name(fleet: str) -> str:
    return f"pitstop-{fleet}"


def slot_name(fleet: str, slot: int) -> str:
    return f"pitstop-{fleet}-slot-{slot}"


def worker_environment() -> dict[str, Any]:
    """The environment in which a worker finds this package, also in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    given = {name: os.environ[name] for name in ("PITSTOP_BUILD",) if name in os.environ}
    return {
        "env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")])), **given}
    }


def keep_on_loopback() -> None:
    """Keeps a single-machine cluster on the loopback: Ray replaces 127.0.0.1 by the machine's address unless it
    believes that this system cannot be part of a cluster."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # for Ray's processes;
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this process, which has read the variable already


def found_cluster() -> str:
    """HOST:PORT of the cluster that was started last on this machine; empty if unknown."""
    return os.environ.get("RAY_ADDRESS") or services.get_ray_address_from_environment("auto", None) or ""


def _has(cluster: str, fleet: str) -> bool:
    """Whether a fleet of that name was started on the cluster."""
    try:
        return ray_tokens.ask(
            cluster, lambda client: client.internal_kv_exists(conductor_name(fleet).encode(), KV, FIND_S)
        )
    except RayError:  # the cluster is ending, or belongs to another user
        return False


def cluster_of(fleet: str) -> str:
    """The address of the cluster with that fleet, among the clusters of this machine; RAY_ADDRESS, if that is set.
    PitstopError: no cluster has it, or several do."""
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    services.find_gcs_addresses.cache_clear()  # the function caches the clusters of its first call
    clusters = sorted(services.find_gcs_addresses())
    found = [each for each in clusters if _has(each, fleet)]
    if len(found) == 1:
        return found[0]
    if found:
        said = f"fleets '{fleet}' were started on {', '.join(found)}"
    else:
        said = f"no fleet '{fleet}' runs on this machine's Ray clusters ({', '.join(clusters) or 'there are none'})"
    code = "failed_precondition" if found else "not_found"
    raise PitstopError(code, f"{said}; --address HOST:PORT names a cluster")


def _on_a_lasting_thread(start: Callable[[], Any]) -> None:
    """Runs a call on a thread that lives as long as the process.

    Ray asks Linux to kill a cluster when the thread that started it ends (PR_SET_PDEATHSIG). If that were a thread of an
    event loop, the cluster would end before the program. Ray's excepthook, which first reports an exception to the
    cluster, would then hide the program's own exception for a minute."""
    started: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(None)
        threading.Event().wait()

    threading.Thread(target=run, name="ray", daemon=True).start()
    started.result()


def start_ray(address: Optional[str] = None, object_store_bytes: int = OBJECT_STORE_BYTES, **options: Any) -> None:
    """Joins a cluster ("auto", or its address), or starts one on this machine alone, on its loopback."""
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is not None:
        if ":" in address and "://" not in address:  # HOST:PORT
            ray_tokens.take_mode_of(address)
        if address.startswith(("127.", "localhost")) or (address == "auto" and found_cluster().startswith("127.")):
            keep_on_loopback()
        ray.init(address=address, namespace=NAMESPACE, **options)
        return
    keep_on_loopback()
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15: any other work would starve the trees
    own = {"include_dashboard": False, "object_store_memory": object_store_bytes}
    _on_a_lasting_thread(functools.partial(ray.init, address="local", namespace=NAMESPACE, **{**own, **options}))
