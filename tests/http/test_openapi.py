"""/openapi.json. schemathesis sends requests that follow the document and requests that break it. The document must
describe each answer.
"""

import contextlib
import subprocess

import pytest

from http_client import Http, program

schemathesis = pytest.importorskip("schemathesis", reason="the package index could not be reached")
hypothesis = pytest.importorskip("hypothesis", reason="the package index could not be reached")

from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
EXAMPLES = 12  # per operation, for each of the two modes
# The most that a request may ask for in the fields that make it long.
SHORT = {"max_tokens": 3, "max_completion_tokens": 3, "max_output_tokens": 3, "max_new_tokens": 3, "n": 2}
TIMEOUT_S = 30
UNENDING = ("/shutdown", "/status/events")  # the first ends the tree, the second has no end


def routed():
    """[(method, path)] of every route, as the document has them."""
    printed = subprocess.run([program("http_proc"), "--routes"], capture_output=True, text=True)
    lines = [line.split("\t") for line in printed.stdout.splitlines()]
    return [
        (method.lower(), path.replace("/*", "/{name}")) for methods, path, *_ in lines for method in methods.split(", ")
    ]


@pytest.fixture(scope="module")
def document(tree):
    answer = Http(tree.url).get("/openapi.json")
    assert answer.status == 200, answer
    return answer.json


def parameters_of(document, method, path):
    return {each["name"]: each for each in document["paths"][path][method].get("parameters", ())}


def body_of(document, path, method="post"):
    return document["paths"][path][method]["requestBody"]["content"]["application/json"]["schema"]


def test_it_has_every_route_with_its_methods(document):
    assert document["openapi"].startswith("3.1")
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == set(routed())


def test_fields_have_the_types_and_bounds_that_the_parsers_have(document):
    completions = body_of(document, "/v1/completions")["properties"]
    assert completions["n"] == {"type": "integer", "minimum": 1, "maximum": 1024, "default": 1}
    assert completions["temperature"]["type"] == "number" and completions["temperature"]["minimum"] == 0
    assert completions["top_p"]["exclusiveMinimum"] == 0 and completions["top_p"]["maximum"] == 1
    assert completions["stream"] == {"type": "boolean", "default": False}
    assert completions["logprobs"]["maximum"] == 2**20 and completions["logprobs"]["minimum"] == -1
    assert completions["kv_tolerance"]["enum"] == ["never", "max_lag", "keep"]
    assert completions["stop_token_ids"]["items"] == {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
    assert "prompt" in body_of(document, "/v1/completions")["required"]
    sampling = body_of(document, "/inference/v1/generate")["properties"]["sampling_params"]["properties"]
    assert "prompt_logprob_token_ids" in sampling and sampling["max_tokens"]["minimum"] == 0
    assert body_of(document, "/v1/messages")["required"] == ["messages", "max_tokens"]
    query = parameters_of(document, "get", "/get_world_size")
    assert query["include_dp"]["in"] == "query" and query["include_dp"]["schema"]["type"] == "boolean"


def test_what_is_refused_is_no_field(document):
    """No dialect's schema has the fields that are refused by name for any value."""
    for path in ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses"):
        properties = body_of(document, path)["properties"]
        for name in ("prompt_embeds", "watermark", "logits_processors", "trace_decode_token_ids"):
            assert name not in properties, (path, name)
    assert "prompt_logprob_token_ids" not in body_of(document, "/v1/completions")["properties"]


def test_errors_have_the_shape_of_their_dialect(document, http):
    for path, body in (
        ("/generate", {}),
        ("/v1/completions", {}),
        ("/v1/messages", {}),
        ("/inference/v1/generate", {}),
    ):
        answer = http.post(path, body)
        assert answer.status == 400, answer
        shape = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
        schema = document["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
        alternatives = schema.get("anyOf", [schema])
        assert any(set(each["required"]) <= set(answer.json) for each in alternatives), (path, schema)


def test_with_keys_operations_ask_for_one(front_end):
    server = front_end(env={"PITSTOP_API_KEY": "k"})
    document = server.http.get("/openapi.json", headers={"authorization": "Bearer k"}).json
    assert "security" not in document["paths"]["/ping"]["get"]
    assert document["paths"]["/generate"]["post"]["security"] == [{"bearer": []}, {"key": []}]


def shorten(body):
    """Limits the fields that would make a request long."""
    if not isinstance(body, dict):
        return
    for name, most in SHORT.items():
        if isinstance(body.get(name), int) and not isinstance(body[name], bool) and body[name] > most:
            body[name] = most
    for name in ("prompt", "text", "input_ids", "input"):
        if isinstance(body.get(name), list):
            del body[name][2:]
    shorten(body.get("sampling_params"))


@pytest.fixture
def restored(http):
    """Undoes the effects that an operation may have had on the tree."""
    yield
    for path, body in (
        ("/drop_weight_update", {}),
        ("/resume_memory_occupation", {}),
        ("/continue_generation", {}),
        ("/wake_up", {}),
        ("/update_weights_from_disk", {"model_path": "stories"}),
        ("/continue_generation", {}),
    ):
        http.post(path, body)
    assert http.get("/health").status == 200


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=("valid", "invalid"))
@pytest.mark.parametrize("method, path", [each for each in routed() if each[1] not in UNENDING])
def test_every_answer_is_one_that_the_document_has(document, tree, restored, method, path, mode):
    operation = schemathesis.openapi.from_dict(document)[path][method.upper()]

    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        shorten(case.body)
        response = case.call(base_url=tree.url, timeout=TIMEOUT_S)
        assert response.status_code != 500, response.text
        case.validate_response(response, checks=CHECKS)

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # the operation has no invalid request
        send()
