"""Clients that ask for the scores of long prompts (several chunks) while versions change."""

import numpy

import pitstop

from .load import OpenAiClient, PythonClient, SglangClient
from .replay import Record
from .weights import num_experts


class BusScorer(PythonClient):
    """Several requests at once, so that at any moment one of them is between two of its chunks."""

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
        if self.prompts.asks_for_routes(rng):
            options["routed_experts_start"], record.routes = 0, []
        options["adapter"] = self.prompts.adapter(rng, record)
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


class BroughtRoutes(PythonClient):
    """Samples with routes, then scores the sampled tokens along these routes: under the same
    version, the bits are the same.
    """

    kind = "bus brought"
    at_once = (1,)

    def _start(self, client):
        rid, rng = self.rid(), self.rng
        record = Record(rid, self.prompts.ids(rng), [], [], [], is_greedy=rng.random() < 0.3, routes=[])
        self.requests.begin(rid, self.kind)
        stream = client.generate(
            record.prompt, rid=rid, logprobs=True, stream=rng.random() < 0.5, text_output=False, routed_experts_start=0,
            ignore_eos=True, max_new_tokens=rng.choice((4, 16, 40)), temperature=0.0 if record.is_greedy else 1.0,
        )  # fmt: skip
        return stream, record, None

    def ask(self):
        client = self._connected()
        if client is None:
            return
        stream, sampled, _ = self._start(client)
        self._finish(stream, sampled, None)
        if sampled.ending != "length":
            return
        rid, prompt = self.rid(), sampled.prompt + sampled.tokens
        scored = Record(rid, prompt, [], [], [], is_greedy=True, brought=sampled.routes)
        if self.rng.random() < 0.5:
            scored.routes = []
        self.requests.begin(rid, self.kind)
        stream = client.generate(
            prompt, rid=rid, max_new_tokens=self.rng.choice((0, 0, 3)), temperature=0.0, text_output=False,
            logprobs={"enabled": True, "prompt_start": 0}, stream=False,
            routed_experts=pitstop.Routes.of(scored.brought, num_experts(self.prompts.config)),
            routed_experts_start=0 if scored.routes is not None else None,
        )  # fmt: skip
        self._finish(stream, scored, None)
        self._compare(sampled, scored)

    def took(self, record, chunk):
        if chunk.prompt is not None:
            record.scores = list(chunk.prompt.logprobs)

    def _compare(self, sampled, scored):
        versions = {span[1:2] + span[3:] for span in sampled.spans} | {
            span[1:2] + span[3:] for span in scored.spans[:1]
        }
        if not scored.scores or len(versions) > 1:
            self.report.count("scorings", f"{self.kind}: of other versions")
            return
        told = numpy.asarray(scored.scores[-len(sampled.tokens) :], numpy.float32)
        was = numpy.asarray(sampled.logprobs, numpy.float32)
        self.report.count("scorings", f"{self.kind}: the bits of sampling")
        if (told.view(numpy.uint32) != was.view(numpy.uint32)).any():
            self.report.problem(f"{scored.rid} along the routes of {sampled.rid} is scored otherwise: {was} {told}")


SCORERS = (BusScorer, SglangScorer, OpenAiScorer)
SCORERS_OF_EXPERTS = (*SCORERS, BroughtRoutes)
