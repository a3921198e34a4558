"""Other engines on the same machine, the same weights and the same requests: bench/peers runs them.

rows          what is measured, and how far ahead pitstop is to be
environment   installs the engines, in an environment of their own
gguf_model    the checkpoint as llama.cpp reads it
protocol      how bench/peers asks an engine's process for a workload, and is answered
vllm_engine, llama_engine   those processes
pitstop_tree  the same for pitstop: a tree, driven by pitstop_bench
pairs         runs them in turn
report        the page, and the plot
"""
