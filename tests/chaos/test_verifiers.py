"""The processes that verify do not keep the command from ending."""

import subprocess
import sys

from chaos import weights

# Queues more records than a pipe holds, for a verifier that has been killed.
PROGRAM = """
import sys, tempfile
from chaos import weights
from chaos.oracle import Rounding
from chaos.replay import Record
from chaos.verifier import Verifiers

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        config = weights.tiny_config(vocab_size=256)
        verifiers = Verifiers(1, config, Rounding.FP32, (1.0, 1.0), 8, directory, lambda *verdict: None)
        (process,) = verifiers._processes
        process.kill()
        process.join()
        for number in range(200):
            verifiers.put(Record(str(number), list(range(5000)), [], []), {})
        assert verifiers.finish(1.0) == 200
    print("all is over")
"""


def test_a_verifier_that_died_with_records_unread_does_not_hold_the_end(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = ":".join(str(weights.ROOT / path) for path in ("tests", "client/python"))
    ended = subprocess.run(
        [sys.executable, program],
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0 and "all is over" in ended.stdout, ended.stderr
