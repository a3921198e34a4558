"""Other engines on the same machine, the same weights and the same requests: bench/peers runs them.

rows          workloads, and pitstop's target ratios
environment   installs the engines, in an environment of their own
models        makes the models' files
gguf_model    the checkpoint as llama.cpp reads it
adapter_files, gguf_adapter   an adapter as PEFT writes it, and as llama.cpp reads it
protocol      the messages between bench/peers and an engine's process
vllm_engine, llama_engine   the engines' processes
pitstop_tree  the same for pitstop: a tree, driven by pitstop_bench
pairs         runs them in turn
report        the page, and the plot
"""
