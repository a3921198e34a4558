"""bench/build_times.py counts what compilers cost, by folder."""

import importlib.util
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("build_times", ROOT / "bench" / "build_times.py")
build_times = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build_times)

SPIN = "import time\nwhile time.process_time() < 0.2: pass\nraise SystemExit(3)"


def test_the_launcher_says_what_a_compiler_used_and_how_it_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(build_times.LOG, str(tmp_path / "log"))
    assert build_times.launch([sys.executable, "-c", SPIN, "-o", "base/CMakeFiles/a.dir/log.cpp.o"]) == 3
    [line] = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert line["output"] == "base/CMakeFiles/a.dir/log.cpp.o"
    assert 0.2 <= line["cpu_s"]


def test_folders_are_summed_up_and_the_longest_comes_first(capsys):
    def line(cpu_s, output):
        return {"cpu_s": cpu_s, "wall_s": cpu_s, "output": output}

    build_times.report(
        [
            line(2.0, "base/CMakeFiles/pitstop_base.dir/log.cpp.o"),
            line(30.0, "tp_worker/model/CMakeFiles/x.dir/engine.cpp.o"),
            line(4.0, "base/CMakeFiles/pitstop_base.dir/isa.cpp.o"),
            line(84.0, "CMakeFiles/pitstop_precompiled_product.dir/cmake_pch.hxx.gch"),
        ]
    )
    said = [" ".join(words.split()) for words in capsys.readouterr().out.splitlines()]
    assert said[:4] == [
        "84.0 s 1 sources (headers)",
        "30.0 s 1 sources tp_worker/model",
        "6.0 s 2 sources base",
        "120.0 s 4 sources in all: 1.0 minutes of two cores",
    ]
    assert said[6] == "84.0 s CMakeFiles/pitstop_precompiled_product.dir/cmake_pch.hxx.gch"
