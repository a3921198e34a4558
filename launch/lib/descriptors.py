"""Raises the limit of file descriptors: the soft one to the hard one, as every process does."""

import resource

from problem import EXIT_START, Problem

OF_A_CHILD = 3  # two pipes and a pidfd
OF_THIS_PROGRAM = 24
MOST = 1 << 20  # base/descriptors.h says why


def raise_limit(num_children):
    """Raises the soft limit to the hard one. Problem: too few to watch over so many processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    needed = OF_THIS_PROGRAM + OF_A_CHILD * num_children
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise Problem(
            f"{soft} file descriptors may be open (ulimit -n); watching over {num_children} processes "
            f"takes {needed}",
            EXIT_START,
        )
