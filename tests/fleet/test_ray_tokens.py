"""Asking a cluster whose Ray has tokens in another form, or none. Ray is simulated: only its names matter here."""

import sys
import types

import pytest

MODULES = ("ray", "ray._raylet", "ray._private", "ray._private.authentication", "ray.exceptions")


class GcsClient:
    def __init__(self, address):
        self.address = address


@pytest.fixture
def played_ray(monkeypatch):
    """Simulated modules of a Ray that has every name that tokens need."""
    made = {name: types.ModuleType(name) for name in MODULES}
    made["ray._raylet"].GcsClient = GcsClient
    made["ray._raylet"].Config = types.SimpleNamespace()
    made["ray._private.authentication"].authentication_token_setup = types.SimpleNamespace()
    made["ray.exceptions"].RayError = type("RayError", (Exception,), {})
    made["ray.exceptions"].AuthenticationError = type("AuthenticationError", (made["ray.exceptions"].RayError,), {})
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "pitstop.fleet.ray_tokens", raising=False)
    yield made
    sys.modules.pop("pitstop.fleet.ray_tokens", None)


@pytest.mark.parametrize(
    "module, name",
    [
        ("ray._raylet", "Config"),
        ("ray._private.authentication", "authentication_token_setup"),
        ("ray.exceptions", "AuthenticationError"),
    ],
)
def test_a_ray_without_tokens_is_asked_without_them(played_ray, module, name):
    delattr(played_ray[module], name)
    from pitstop.fleet import ray_tokens

    assert ray_tokens.ask("machine:6379", lambda client: client.address) == "machine:6379"
