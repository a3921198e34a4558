"""Trainers that call an engine in a process of their own, a Ray actor mostly: pitstop in its place.

    openrlhf.install()    OpenRLHF's rollout actors have pitstop engines
    verl.register()       rollout.name=pitstop
    nemo_rl.PitstopGeneration    a GenerationInterface

Each module needs the package it is for, and is imported by its full name. docs/trainers.md tells which trainers need
none of them, as they speak HTTP.
"""
