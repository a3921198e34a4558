"""vLLM in this process: vllm_engine MODEL [ADAPTER RANK]. bench/peers starts it, in the peers' environment."""

from __future__ import annotations

import sys
import time
from typing import Any

from bench.peer.protocol import Times, serve

MAX_ROWS = 64
CONTEXT = 4608


class Vllm:
    def __init__(self) -> None:
        self._engine: Any = None
        self._num_requests = 0

    def load(self) -> tuple[str, int]:
        import vllm

        model = vllm.LLM(
            sys.argv[1],
            dtype="bfloat16",
            max_model_len=CONTEXT,
            max_num_seqs=MAX_ROWS,
            enable_prefix_caching=False,
            seed=0,
            **self._lora_options(),
        )
        self._engine = model.llm_engine
        return f"vLLM {vllm.__version__}", model.llm_engine.model_config.get_vocab_size()

    @staticmethod
    def _lora_options() -> dict[str, Any]:
        return {"enable_lora": True, "max_loras": 1, "max_lora_rank": int(sys.argv[3])} if len(sys.argv) > 2 else {}

    @staticmethod
    def _lora_request() -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest("adapter", 1, sys.argv[2]) if len(sys.argv) > 2 else None

    def run(self, prompts: list[list[int]], num_tokens: int) -> Times:
        from vllm import SamplingParams

        times: Times = {}
        places: dict[str, int] = {}
        lora = self._lora_request()
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens, detokenize=False)
        for row, prompt in enumerate(prompts):
            name = str(self._num_requests)
            self._num_requests += 1
            places[name] = row
            times[row] = []
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params, lora_request=lora)
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            now = time.perf_counter()
            for output in outputs:
                seen = times[places[output.request_id]]
                seen.extend([now] * (len(output.outputs[0].token_ids) - len(seen)))
        return times


if __name__ == "__main__":
    engine = Vllm()
    serve(engine.load, engine.run)
