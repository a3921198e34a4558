"""Clients that have prompts of several chunks scored while versions change."""

from .load import OpenAiClient, PythonClient, SglangClient
from .replay import Record


class BusScorer(PythonClient):
    """Several at once, so that there is one between two of its chunks at any moment."""

    kind = "bus scoring"
    at_once = (6, 10)

    def _start(self, client):
        rid, rng = self.rid(), self.rng
        prompt = self.prompts.scored(rng)
        record = Record(rid, prompt, [], [], [], is_greedy=True)
        start = rng.choice((0, 0, 1, len(prompt) // 2, len(prompt)))
        record.score_start = min(max(start, 1), len(prompt))
        record.score_ids = sorted(rng.sample(range(2000), rng.choice((0, 2))))
        options = {
            "logprobs": {"enabled": True, "prompt_start": start, "ids": record.score_ids},
            "kv_tolerance": rng.choice(("never", "keep", "max_lag")),
            "stream": rng.random() < 0.5,
            "text_output": False,
            "priority": rng.choice((0, 0, 0, 1)),
        }
        record.kv_tolerance = options["kv_tolerance"]
        if record.kv_tolerance == "max_lag":
            options["kv_max_lag"] = 3
        self.requests.begin(rid, self.kind)
        num_outputs = rng.choice((0, 0, 1, 12))
        stream = client.generate(prompt, rid=rid, max_new_tokens=num_outputs, temperature=0.0, **options)
        return stream, record, None

    def took(self, record, chunk):
        if chunk.prompt is not None:
            record.scores, record.ids_scores = list(chunk.prompt.logprobs), list(chunk.prompt.ids_logprobs)


class SglangScorer(SglangClient):
    kind = "sglang scoring"

    def body(self, rid, record, fields):
        body = super().body(rid, record, fields)
        body.pop("text", None)
        record.prompt = body["input_ids"] = self.prompts.scored(self.rng)
        body["logprob_start_len"] = self.rng.choice((0, 0, 1, len(record.prompt) // 2))
        record.score_start = max(body["logprob_start_len"], 1)
        fields["max_new_tokens"] = self.rng.choice((0, 0, 1, 12))
        return body

    def take(self, record, answer):
        ending = super().take(record, answer)
        scores = [entry[0] for entry in answer["meta_info"]["input_token_logprobs"]]
        if ending in ("length", "stop") or record.tokens:
            record.scores = scores[record.score_start - self.start_of(record, scores) :]
        if ending is not None:
            record.spans = self.spans_of(answer["meta_info"], with_empty=True)
        return ending

    @staticmethod
    def start_of(record, scores):
        return len(record.prompt) - len(scores)


class OpenAiScorer(OpenAiClient):
    kind = "openai scoring"

    def body(self, rid, record, fields):
        body = super().body(rid, record, fields)
        record.prompt = body["prompt"] = self.prompts.scored(self.rng)
        record.score_start = 1
        body["max_tokens"] = self.rng.choice((1, 12))
        self._is_echoed = self.rng.random() < 0.5
        if self._is_echoed:
            body.update(echo=True, stream=False, max_tokens=self.rng.choice((0, 1, 12)))
        else:
            body["prompt_logprobs"] = 0
        return body

    def take(self, record, answer):
        choice = answer["choices"][0]
        if self._is_echoed:
            all_of_it = choice["logprobs"]["token_logprobs"]
            num_prompt = len(all_of_it) - len(choice["token_ids"])
            record.scores = all_of_it[1:num_prompt]
            choice["logprobs"]["token_logprobs"] = all_of_it[num_prompt:]
        elif "prompt_logprobs" in choice:
            shown = zip(record.prompt[1:], choice["prompt_logprobs"][1:])
            record.scores = [each and each[str(token)]["logprob"] for token, each in shown]
        ending = super().take(record, answer)
        if "weight_version_spans" in answer:
            record.spans = self.spans_of(answer, with_empty=True)
        if ending == "abort" and not record.tokens:
            record.scores = None
        return ending


SCORERS = (BusScorer, SglangScorer, OpenAiScorer)
