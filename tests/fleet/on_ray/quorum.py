"""One replica of three hangs through an update with a quorum of two: it is set aside, and later
joins the others again.
"""

import json
import os
import pathlib
import signal

from machines import START_S, another_version, machines, places, weights_of
from pitstop import PitstopError
from pitstop.fleet import Fleet

MODELS = pathlib.Path(__file__).resolve().parents[3] / "launch" / "models"
UPDATE_S = 15.0  # limit of an update; the other replicas are prepared long before
DEADLINE_S = 240


def main():
    options = {"threads": 1, "quorum": 2, "start_timeout": START_S, "hang_timeout": 3600}  # the watch ends nothing here
    with machines(1, cpus=3), Fleet("stories", replicas=3, **options) as fleet:
        where = places(fleet)
        member, place = sorted(where.items())[0]
        weights = weights_of(place)
        os.kill(place["pid"], signal.SIGSTOP)
        outcome = fleet.update_weights(another_version(weights, 1), label="two of three", timeout=UPDATE_S)
        came = {name: each["outcome"] for name, each in outcome.replicas.items()}
        assert came[member] == "failed" and sorted(came.values()) == ["committed", "committed", "failed"], came
        assert member not in places(fleet)
        out = [fleet.generate("Once", {"max_new_tokens": 4}, session=str(i)) for i in range(6)]
        assert {span.epoch for each in out for span in each.spans} == {outcome.version.epoch}
        os.kill(place["pid"], signal.SIGCONT)
        fleet.until_ready(timeout=DEADLINE_S)
        assert set(places(fleet)) == set(where)  # the same replica, and no new one in its place
        two = sorted(where)[:2]
        for name in two:
            os.kill(where[name]["pid"], signal.SIGSTOP)
        try:
            fleet.update_weights(another_version(weights, 2), timeout=UPDATE_S)
        except PitstopError as error:
            assert error.code == "deadline_exceeded" and "quorum" in error.message, error
        else:
            raise AssertionError("one of three took effect")
        finally:
            for name in two:
                os.kill(where[name]["pid"], signal.SIGCONT)
        fleet.until_ready(timeout=DEADLINE_S)
        status = fleet.status()
        assert {each["digest"] for each in status["replicas"].values()} == {outcome.version.digest}
        last = fleet.update_weights_from_disk(str(MODELS / "stories"), label="from disk")
        assert last.version.label == "from disk"
        digests = {each["digest"] for each in fleet.status()["replicas"].values()}
        assert digests == {last.version.digest}
    print(json.dumps({"epoch": last.version.epoch}))


if __name__ == "__main__":
    main()
