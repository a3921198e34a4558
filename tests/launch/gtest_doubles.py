"""Programs that behave like GoogleTest's, or misbehave, for tests of tests/gpu/run."""

import pathlib

HEAD = """
import json, os, sys, time
TESTS = {"Good": ["A", "B"], "Bad": ["First", "Crashes", "Hangs", "Last"], "After": ["C"]}
if "--gtest_list_tests" in sys.argv:
    for suite, tests in TESTS.items():
        print(suite + ".")
        for test in tests: print("  " + test)
    sys.exit(0)
def argument(name):
    return next(a.split("=", 1)[1] for a in sys.argv if a.startswith(name + "="))
names = argument("--gtest_filter").split(":")
results = []
def run(name, act=lambda: None, **properties):
    if name not in names: return
    print("[ RUN      ] " + name, flush=True)
    act()
    print("[       OK ] " + name + " (0 ms)", flush=True)
    results.append({"name": name.split(".")[1], "result": "COMPLETED", **properties})
def finish():
    path = argument("--gtest_output").split(":", 1)[1]
    suite = names[0].split(".")[0]
    json.dump({"testsuites": [{"name": suite, "testsuite": results}]}, open(path, "w"))
"""

MISBEHAVES = """
run("Good.A", worst_error="0.5", worst_error_over_bound="0.25")
run("Good.B", worst_error="0.1", worst_error_over_bound="0.75")
run("Bad.First")
run("Bad.Crashes", os.abort)
run("Bad.Hangs", lambda: time.sleep(600))
run("Bad.Last")
run("After.C")
finish()
"""


def commands():
    """Command lines of all processes."""
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes()
        except OSError:
            pass  # the process has ended meanwhile
