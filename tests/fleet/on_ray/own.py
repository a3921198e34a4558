"""A fleet on a cluster that it starts itself: any number of replicas share this machine, however few CPUs it has."""

import functools
import json

from pitstop.fleet import Fleet
from pitstop.fleet import fleet as of_fleets


def main():
    of_fleets.start_ray = functools.partial(of_fleets.start_ray, num_cpus=1, log_to_driver=False)
    with Fleet("stories", replicas=2, threads=1, start_timeout=120) as fleet:
        fleet.add_replicas(1)
        fleet.until_ready(timeout=120)
        print(json.dumps({"ready": fleet.status()["ready"]}))


if __name__ == "__main__":
    main()
