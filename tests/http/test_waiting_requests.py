"""A request over HTTP that waits for a paused tree gets the reason: a comment among the events, and
a header.
"""

import json
import re
import threading
import time

WHY = re.compile(r"paused \(in_place\) for \d+\.\d s; continue ends the pause")
BODY = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
CHAT = {"model": "stories", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}


def first_bytes(raw, mark):
    data = b""
    while mark not in data:
        data += raw.socket.recv(4096)
    return data.decode()


def post(path, body):
    text = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        len(text),
        text,
    )


def test_a_stream_begins_with_a_comment_that_says_why(http, paused):
    for path, body in (("/generate", BODY), ("/v1/chat/completions", CHAT)):
        with http.raw() as raw:
            with paused():
                raw.send(post(path, {**body, "stream": True}))
                before = first_bytes(raw, b": waiting:")
                head, _, rest = before.partition("\r\n\r\n")
                assert "text/event-stream" in head
                assert WHY.search(re.search(r"x-pitstop-waited: (.*)", head)[1])
                assert WHY.search(rest + first_bytes(raw, b"\n\n"))
            after = first_bytes(raw, b"data: [DONE]")
            assert "data: {" in after and "error" not in after


def test_an_answer_that_waited_says_so_in_a_header(http, admin):
    answers = []
    admin.call("pause_generation", mode="in_place")
    thread = threading.Thread(target=lambda: answers.append(http.post("/generate", BODY)))
    thread.start()
    try:
        time.sleep(3.0)  # the wait is what is tested
        assert not answers
    finally:
        admin.call("continue_generation")
        thread.join()
    (answer,) = answers
    assert answer.status == 200 and WHY.search(answer.headers["x-pitstop-waited"])


def test_an_answer_that_came_in_time_has_no_such_header(http):
    answer = http.post("/generate", BODY)
    assert answer.status == 200 and "x-pitstop-waited" not in answer.headers
