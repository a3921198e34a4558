"""The orders of a fleet's coordinator about adapters. tests/fleet/on_ray/adapters.py has real trees."""

import asyncio
import dataclasses

import pytest

from pitstop import PitstopError
from pitstop.digests import text_digest
from pitstop.fleet import orders
from pitstop.fleet.adapter_calls import FleetAdapterCalls
from pitstop.fleet.coordinator import RESEND_S
from pitstop.fleet.tree_adapters import adapter_of
from update_world import INITIAL, coordinator_of


def loaded_by_all(coordinator, name, digest):
    """Loads an adapter, up to its end. Returns the version with it."""
    coordinator.update(f"load {name}", timeout_s=5.0, adapter=name)
    stages = {member: order for member, order in coordinator.take_orders() if isinstance(order, orders.Stage)}
    for member, order in stages.items():
        version = order.version_beside(coordinator.members[member].version, orders.Adapter(name, digest))
        coordinator.handle_answer(orders.Staged(member, order.key, version))
    for answer in (orders.Decided, orders.Committed):
        for member, order in stages.items():
            coordinator.handle_answer(answer(member, order.key))
    (outcome,) = coordinator.take_outcomes()
    assert outcome.ok and outcome.version == coordinator.committed
    coordinator.take_orders()
    return outcome.version


def test_a_replica_that_joins_gets_the_adapters_beside_the_weights():
    coordinator = coordinator_of("a")
    loaded_by_all(coordinator, "x", "dx")
    version = loaded_by_all(coordinator, "w", "dw")
    assert [each.name for each in version.adapters] == ["w", "x"] and version.has_weights_of(INITIAL)
    coordinator.add("b")
    coordinator.handle_answer(orders.State("b", 1, INITIAL))
    assert coordinator.take_orders()[-1] == ("b", orders.Fetch(1, version, "a")) and coordinator.ready == ["a"]
    half = dataclasses.replace(version, adapters=version.adapters[:1], change=0)
    coordinator.handle_answer(orders.Fetched("b", half, "data_loss", "x: other bytes"))
    assert coordinator.ready == ["a"] and coordinator.members["b"].why == "x: other bytes"
    coordinator.gone("a")
    coordinator.tick(RESEND_S)
    assert coordinator.take_orders()[-1] == ("b", orders.Fetch(1, version)), (
        "adapters come from directories, not from replicas"
    )
    coordinator.handle_answer(orders.Fetched("b", version))
    assert coordinator.ready == ["b"]


def test_an_adapter_is_loaded_beside_the_fleets_version_alone():
    """A replica that is behind may load the weights anew, and then has no adapters."""
    coordinator = coordinator_of("a")
    version = loaded_by_all(coordinator, "x", "dx")
    coordinator.add("b")
    coordinator.handle_answer(orders.State("b", 1, dataclasses.replace(version, epoch=0, digest="older")))
    coordinator.take_orders()
    coordinator.gone("a")
    coordinator.update("an adapter", adapter="y")
    (outcome,) = coordinator.take_outcomes()
    assert (outcome.code, outcome.message) == ("unavailable", "0 replicas can take part; 1 are needed")
    coordinator.update("weights")
    order = coordinator.take_orders()[-1][1]
    assert (order.uid, order.epoch, order.adapters) == ("weights", 2, ())


class RecordedCalls(FleetAdapterCalls):
    async def _update(self, payload, timeout, uid=None):
        self.payload = payload


def test_replicas_read_the_configuration_themselves_and_compare_it_with_the_callers(tmp_path):
    """A text that is sent would turn off each rank's watch over the directory's files."""
    (tmp_path / "adapter_config.json").write_bytes(b'{"r": 4}\r\n')
    calls = RecordedCalls()
    asyncio.run(calls.load_adapter("x", tmp_path))
    assert "adapter_config" not in calls.payload
    assert calls.payload["adapter_config_digest"] == text_digest(b'{"r": 4}\r\n')
    adapter = adapter_of(calls.payload, "dx")
    assert (adapter.config, adapter.config_digest) == ("", calls.payload["adapter_config_digest"])
    asyncio.run(calls.load_adapter("x", tmp_path, {"r": 8}))
    assert calls.payload["adapter_config"] == '{"r": 8}' and "adapter_config_digest" not in calls.payload


@pytest.mark.parametrize("argument", [{"partial": True}, {"base_digest": "00"}, {"allow_nonfinite": True}])
def test_what_a_replica_could_not_load_again_is_refused(argument):
    calls = FleetAdapterCalls()
    with pytest.raises(PitstopError, match=f"{next(iter(argument))}: a fleet has none") as error:
        asyncio.run(calls.load_adapter("x", "/nowhere", **argument))
    assert error.value.code == "unsupported"
    with pytest.raises(PitstopError, match="No such file"):
        asyncio.run(calls.load_adapter("x", "/nowhere", **dict.fromkeys(argument)))
