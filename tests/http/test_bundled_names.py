"""A bundled model has the same name over HTTP as in commands."""


def test_model_path_may_be_a_bundled_models_name(http, admin):
    for name in ("bard", "stories"):
        answer = http.post("/update_weights_from_disk", {"model_path": name, "weight_version": name})
        assert answer.status == 200 and answer.json["success"], answer
        (replica,) = admin.call("status")["replicas"]
        assert replica["label"] == name
    for other in ("bard-moe", "bard-hybrid"):
        answer = http.post("/update_weights_from_disk", {"model_path": other})
        assert answer.status == 400 and "is a different model" in answer.body.decode(), answer
    answer = http.post("/update_weights_from_disk", {"model_path": "nobody"})
    assert answer.status == 400 and "the directory does not exist" in answer.body.decode()
