"""The Python pusher, with a tree that answers nothing."""

import os
import subprocess
import sys

import numpy
import pytest

from pitstop import PitstopError
from pitstop.cuda_arrays import CudaArray
from pitstop.digests import tensor_digest
from pitstop.push import WeightPusher, manifest_of

NOBODY = 65534
# Prints how many bytes the socket's owner sends to a peer that only connects.
GREETED = """
import socket, sys
peer = socket.socket(socket.AF_UNIX)
peer.settimeout(60)
peer.connect(sys.argv[1])
try:
    print(len(peer.recv(1)))
except ConnectionError:
    print(0)
"""


class _Silent:
    """A tree with one worker, which never connects. `look` is called with the pusher's endpoint."""

    def __init__(self, look):
        self._look = look

    def status(self):
        return {"replicas": [{"workers": [{"device_uuid": "cpu-0"}]}]}

    def stage_weights(self, path, source, **_):
        self._look(source["handles"]["cpu-0"])
        raise PitstopError("unavailable", "looked")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_cannot_take_a_workers_messages():
    greeted = {}

    def look(endpoint):
        address = "\\0" + endpoint.removeprefix("ipc://@")
        for user in (0, NOBODY):
            command = [sys.executable, "-c", GREETED.replace("sys.argv[1]", f"'{address}'")]
            done = subprocess.run(command, user=user, capture_output=True, text=True, timeout=100)
            greeted[user] = done.stdout.strip() or done.stderr

    with pytest.raises(PitstopError, match="looked"):
        WeightPusher(_Silent(look)).stage({"w": numpy.zeros((2, 4), numpy.uint16)})
    assert greeted == {0: "1", NOBODY: "0"}


class _OnGpu(CudaArray):
    """Numbers that stand for those in a GPU's memory."""

    def in_host(self):
        return self.owner


def test_decay_rates_are_declared_as_they_are_resident_wherever_they_are_sent_from():
    name = "model.layers.0.linear_attn.A_log"
    wide = numpy.array([1, 2, -1], numpy.float32)
    narrow = numpy.array([0x3F80, 0x4000, 0xBF80], numpy.uint16)  # the same numbers in bfloat16
    wanted = [{"name": name, "dtype": "F32", "shape": [3], "digest": tensor_digest(wide)}]
    sent = [wide, narrow, _OnGpu(wide, 0, (3,), "<f4"), _OnGpu(narrow, 0, (3,), "<u2")]
    assert [manifest_of({name: each}) for each in sent] == [wanted] * 4
