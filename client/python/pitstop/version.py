"""The version of pitstop: pyproject.toml and CMakeLists.txt have the same, and a test compares."""

VERSION = "0.1.0"
