"""A trainer: joins the fleet of a cluster and updates it a few times. Arguments: ADDRESS FIRST COUNT."""

import json
import os
import sys

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from machines import another_version, places, weights_of  # noqa: E402
from pitstop.fleet import Fleet  # noqa: E402


def main(address, first, count):
    import ray

    from pitstop.fleet.cluster import keep_on_loopback

    keep_on_loopback()
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    with Fleet() as fleet:
        weights = weights_of(next(iter(places(fleet).values())))
        outcomes = []
        for number in range(first, first + count):
            outcome = fleet.update_weights(another_version(weights, number), label=f"update {number}")
            outcomes.append([outcome.version.epoch, outcome.version.digest, sorted(outcome.replicas)])
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
