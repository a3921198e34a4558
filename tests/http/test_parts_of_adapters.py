"""A part of an adapter, over HTTP. The reference is that of test_adapters.py."""

import numpy

from lora_files import write_adapter
from test_adapters import TOLERANCE, files, http, load, references, served, tokens_of  # noqa: F401  (fixtures)


def test_parts_of_an_adapter_change_the_loaded_one(http, files, references, tmp_path):  # noqa: F811
    names = sorted(files["two"][2])
    parts = [{name: files["two"][2][name] for name in some} for some in (names[::2], names[1::2])]
    places = [write_adapter(tmp_path / str(number), part) for number, part in enumerate(parts)]
    body = {"lora_name": "policy", "partial": True}
    refused = http.post("/load_lora_adapter", {**body, "lora_path": str(places[0])})
    assert refused.status == 404 and "no adapter 'policy' is loaded" in refused.message, refused
    load(http, "policy", files["one"][0])
    digests = []
    for place in places:
        answer = http.post("/load_lora_adapter", {**body, "lora_path": str(place)})
        assert answer.status == 200 and answer.json["loaded_adapters"]["policy"] == "__tensor__", answer
        digests.append(answer.json["adapter_digest"])
    ids, logprobs = tokens_of(http, "policy")
    assert ids == references["two"][0]
    numpy.testing.assert_allclose(logprobs, references["two"][1], atol=TOLERANCE)
    load(http, "whole", files["two"][0])
    answer = http.post("/load_lora_adapter", {"lora_name": "whole", "lora_path": str(files["two"][0])})
    assert answer.json["adapter_digest"] == digests[1] != digests[0]
    refused = http.post("/load_lora_adapter", {**body, "lora_path": str(places[0]), "partial": "some"})
    assert refused.status == 400 and "partial" in refused.message, refused
