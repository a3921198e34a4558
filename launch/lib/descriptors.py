"""Raises the soft limit of file descriptors to the hard limit, as every process of a tree does."""

import resource

from problem import EXIT_START, Problem

OF_A_CHILD = 3  # descriptors per process: two pipes and a pidfd
OF_THIS_PROGRAM = 24
MOST = 1 << 20  # the reason is in base/descriptors.h


def raise_limit(num_children):
    """Raises the soft limit to the hard one. Problem: too few for this many processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    needed = OF_THIS_PROGRAM + OF_A_CHILD * num_children
    if soft != resource.RLIM_INFINITY and soft < needed:
        raise Problem(
            f"{soft} file descriptors may be open, and {num_children} processes need {needed}: raise ulimit -n",
            EXIT_START,
        )
