"""Verifies records in separate processes, at the same time as the tree runs."""

import collections
import multiprocessing
import os
import queue
import threading
import time

import numpy

QUEUE_MAX = 4000  # records that may wait; more are skipped, so that load never waits for the oracle
WEIGHTS_MAX = 48  # versions that a verifier holds


def _work(config, rounding, tolerances, page_size, directories, records, verdicts):
    """A verifier's process: until it is sent None."""
    numpy.seterr(over="ignore", invalid="ignore", divide="ignore")  # versions that have diverged
    from . import adapters
    from .oracle import Oracle, Rounding
    from .replay import Replay, Verdict
    from .versions import load_version

    oracle = Oracle(config, Rounding(rounding))
    cache, loaded = collections.OrderedDict(), {}

    def weights_of(digest, adapter=None):
        if digest not in cache:
            cache[digest] = oracle.weights(load_version(directories[0], digest))
            if len(cache) > WEIGHTS_MAX:
                cache.popitem(last=False)
        cache.move_to_end(digest)
        if adapter is None:
            return cache[digest]
        if adapter not in loaded:
            loaded[adapter] = adapters.load(directories[1], adapter)
        return oracle.adapted(cache[digest], *loaded[adapter])

    replay = Replay(oracle, weights_of, tolerances[0], page_size, tolerances[1])
    while True:
        item = records.get()
        if item is None:
            break
        record, epochs = item
        begin = time.process_time()
        try:
            verdict = replay.verify(record, epochs)
        except Exception as error:  # a verifier's own mistake is a finding, not its end
            verdict = Verdict(record.rid, problem=f"the verifier failed: {type(error).__name__}: {error}")
        verdicts.put((verdict, record if verdict.problem else None, time.process_time() - begin))
    verdicts.put(None)


class Verifiers:
    """Owns: the processes. A thread of this object calls on_verdict(verdict, record or None, cpu_s). `directories`:
    the versions' and the adapters'."""

    def __init__(self, num, config, rounding, tolerances, page_size, directories, on_verdict):
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        context = multiprocessing.get_context("spawn")
        self._records = context.Queue()
        # finish() waits for verdicts. Records that a killed verifier has not read must not keep
        # this process from ending.
        self._records.cancel_join_thread()
        self._verdicts = context.Queue()
        self._on_verdict = on_verdict
        self.num_skipped = 0
        self._num_waiting = 0
        self._lock = threading.Lock()
        self._processes = [
            context.Process(
                target=_work,
                daemon=True,
                args=(
                    config,
                    rounding.value,
                    tolerances,
                    page_size,
                    [str(each) for each in directories],
                    self._records,
                    self._verdicts,
                ),
            )
            for _ in range(num)
        ]
        for process in self._processes:
            process.start()
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def put(self, record, epochs):
        with self._lock:
            if self._num_waiting >= QUEUE_MAX:
                self.num_skipped += 1
                return
            self._num_waiting += 1
        self._records.put((record, epochs))

    def num_waiting(self):
        with self._lock:
            return self._num_waiting

    def _take(self):
        ended = 0
        while ended < len(self._processes):
            try:
                item = self._verdicts.get(timeout=1.0)
            except queue.Empty:
                if not any(process.is_alive() for process in self._processes):
                    return
                continue
            if item is None:
                ended += 1
                continue
            with self._lock:
                self._num_waiting -= 1
            self._on_verdict(*item)

    def finish(self, timeout_s):
        """Verifies the waiting records. Returns how many were left when the time ran out."""
        for _ in self._processes:
            self._records.put(None)
        self._thread.join(timeout_s)
        for process in self._processes:
            process.join(1.0)
            if process.is_alive():
                process.kill()
                process.join()
        return self.num_waiting()
