"""pitstop for trainers that call an engine in a process of their own, usually a Ray actor.

    openrlhf.install()    OpenRLHF's rollout actors have pitstop engines
    verl.register()       rollout.name=pitstop
    nemo_rl.PitstopGeneration    a GenerationInterface

Each module needs its trainer's package, and is imported by its full name. docs/trainers.md lists the trainers that need
none of them, because they use HTTP.
"""
