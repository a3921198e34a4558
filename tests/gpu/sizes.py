"""The sizes in tests/gpu/run: on a GPU as in service; small enough for a rehearsal on the GPU in
software.
"""

import dataclasses

UNTUNED = "--tuning-dir=none"


@dataclasses.dataclass(frozen=True)
class Sizes:
    models: dict  # {name: (pitstop_make_model's arguments, bytes of weights)}; the one with a target is first
    # {what: pitstop_bench's arguments}, for every model
    benches: dict
    first: dict  # {what: pitstop_bench's arguments} in tests/gpu/first, for one tree of the large model
    peers: str  # peers_torch.py's --sizes
    tests_s: float = 240.0  # limit of the kernels' tests, and of the engine's
    test_s: float = 45.0  # a test without output for this long counts as hanging
    text_tokens: int = 48  # tokens of the bundled model's text
    streams: int = 64  # requests that decode during an update
    tokens_before: int = 80  # tokens of each stream before the update, which is compared with the latest 64 steps
    stream_tokens: int = 1024  # tokens of each stream that is not stopped earlier
    tree: tuple = ()  # flags of the trees

    @property
    def untuned(self):
        """The flags of a tree that measures no products, and therefore starts faster."""
        return (*(flag for flag in self.tree if flag != UNTUNED), UNTUNED)


REAL = Sizes(
    models={"qwen3-8b": (("qwen3-8b",), 16.4e9), "qwen3-0.6b": (("qwen3-0.6b",), 1.5e9)},
    benches={
        "decode_1": ("offline", "--num-requests=1", "--prompt-len=128", "--output-len=128"),
        "decode_8": ("offline", "--num-requests=8", "--prompt-len=128", "--output-len=64"),
        "decode_64": ("offline", "--num-requests=64", "--prompt-len=1024", "--output-len=64"),
        "prefill_8k": ("stream", "--prompt-len=8192", "--output-len=2"),
    },
    first={
        "decode_1": ("offline", "--num-requests=1", "--prompt-len=1024", "--output-len=128"),
        "decode_32": ("offline", "--num-requests=32", "--prompt-len=1024", "--output-len=192"),
        # while prompts are computed, the earlier requests decode; then all requests decode
        "decode_256": ("offline", "--num-requests=256", "--prompt-len=512", "--output-len=384"),
        "prefill_8k": ("stream", "--num-requests=3", "--prompt-len=8192", "--output-len=2", "--seed=4"),
    },
    peers="real",
    tree=("--step-timeout=30",),  # a hang is found within the part's time
)
REHEARSED = Sizes(
    models={"qwen3-8b": (("tiny",), 20e6), "qwen3-0.6b": (("tiny",), 20e6)},
    benches={
        "decode_1": ("offline", "--num-requests=1", "--prompt-len=8", "--output-len=4"),
        "decode_8": ("offline", "--num-requests=8", "--prompt-len=8", "--output-len=2"),
        "decode_64": ("offline", "--num-requests=3", "--prompt-len=16", "--output-len=3"),
        "prefill_8k": ("stream", "--num-requests=1", "--prompt-len=40", "--output-len=2"),
    },
    first={
        "decode_1": ("offline", "--num-requests=1", "--prompt-len=8", "--output-len=4"),
        "decode_32": ("offline", "--num-requests=2", "--prompt-len=8", "--output-len=3"),
        "decode_256": ("offline", "--num-requests=4", "--prompt-len=8", "--output-len=3"),
        "prefill_8k": ("stream", "--num-requests=1", "--prompt-len=40", "--output-len=2"),
    },
    peers="small",
    tests_s=420.0,
    test_s=300.0,
    text_tokens=8,
    streams=3,
    tokens_before=2,
    stream_tokens=400,
    tree=(UNTUNED, "--max-total-tokens=2048", "--chunked-prefill-size=256", "--max-running-requests=8"),
)


def is_emulated(device):
    return bool(device) and device.get("name", "").startswith("emulated")


def of(device):
    return REHEARSED if is_emulated(device) else REAL
