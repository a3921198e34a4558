"""Many streams at once, each with its own output, while generation is paused and control routes are
called.

The benchmark is the test: it holds streams open, replaces those that end, and compares each with
the output of its prompt alone. `bench/README.md` has the results of 2,000 of them for a minute.
"""

import json
import subprocess

from http_client import program

STREAMS = 200


def test_no_stream_is_lost_and_none_is_given_anothers(tmp_path):
    report = tmp_path / "hold.json"
    done = subprocess.run(
        [program("http_hold"), f"--streams={STREAMS}", "--seconds=4", "--pause-every-s=0.5",
         "--output-len=32", f"--json={report}", "--", "--max-running-requests=128"],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(report.read_text())
    assert (result["lost"], result["mixed"]) == (0, 0), done.stdout
    assert result["finished"] >= STREAMS
    assert result["open_min"] >= STREAMS - 1  # except the one that is being replaced
    assert result["poll_ms"]["count"] > 0 and result["pause_ms"]["count"] > 0
