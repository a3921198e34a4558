"""A router of the kind KIND in front of a fleet. Requests succeed, also after another replica has replaced a dead one."""

import json
import sys
import time
import urllib.request

from machines import START_S, kill, machines, places
from pitstop.fleet import Fleet

DEADLINE_S = 240


def call(url, body=None):
    request = urllib.request.Request(
        url, json.dumps(body).encode() if body else None, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def until(is_so, what):
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def routed(router):
    return {each["url"] for each in call(router + "/workers")["workers"] if each["is_healthy"]}


def ready(fleet):
    return {place["url"] for place in places(fleet).values()}


def main(kind):
    body = {"model": "stories", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    with machines(1, cpus=2) as _, Fleet("stories", replicas=2, threads=1, port=0, start_timeout=START_S) as fleet:
        router = fleet.start_router(kind)
        until(lambda: routed(router) == ready(fleet) and len(ready(fleet)) == 2, "two replicas are not routed to")
        first = call(router + "/v1/completions", body)["choices"][0]["text"]
        before = ready(fleet)
        kill(next(iter(places(fleet).values()))["pid"])
        until(lambda: ready(fleet) != before, "the death was not seen")
        fleet.until_ready(timeout=DEADLINE_S)
        until(lambda: routed(router) == ready(fleet) and len(ready(fleet)) == 2, "the new replica is not routed to")
        assert {call(router + "/v1/completions", body)["choices"][0]["text"] for _ in range(6)} == {first}
    print(json.dumps({"text": first}))


if __name__ == "__main__":
    main(sys.argv[1])
