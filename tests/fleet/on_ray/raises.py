"""A program that raises an exception while it has a fleet of its own."""

from machines import START_S
from pitstop.fleet import Fleet

with Fleet("stories", replicas=1, threads=1, start_timeout=START_S):
    raise ValueError("of the program's own")
