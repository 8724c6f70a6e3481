"""The wire: who may call, what a body may be, what a stream looks like in bytes, clients that leave."""

import gzip
import json
import socket
import time

import httpx
import pytest

from goinfer.bundle_format.errors import GoinferError, UsageError
from goinfer.runtime.chat_errors import TemplateRefusalError
from goinfer.serve.app import Access, Limits
from goinfer.serve.errors import ApiError
from goinfer.serve.guard import host_name, is_loopback
from goinfer.serve.server import Address, BindError, bind
from tests.runtime_text.text_fakes import FakeEngine, script
from tests.serve.conftest import Live, Start

CHAT = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0}
COMPLETION = {"prompt": "abc", "temperature": 0}


HTTP = httpx.Client(timeout=30, verify=False)  # making one costs more than a request


def post(live: Live, path: str, body: object, **headers: str) -> httpx.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    return HTTP.post(live.url + path, content=data, headers=headers)


def message(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"} and set(reply.json()["error"]) == {"message", "type", "param", "code"}
    return reply.json()["error"]["message"]


def test_the_bytes_of_a_stream(start: Start) -> None:
    live = start(FakeEngine(script(4, b"ok")))
    reply = post(live, "/v1/completions", {**COMPLETION, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in reply.headers
    events = reply.text.split("\n\n")
    assert events[-1] == "" and events[-2] == "data: [DONE]"
    data = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [d["choices"][0]["finish_reason"] for d in data] == [None, None, "stop"]
    assert [d["choices"][0]["text"] for d in data] == ["o", "k", ""]
    assert all("usage" not in d for d in data)
    reply = post(live, "/v1/completions", {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}})
    data = [json.loads(event.removeprefix("data: ")) for event in reply.text.split("\n\n")[:-2]]
    assert [d["usage"] for d in data[:-1]] == [None] * 3 and data[-1]["usage"]["completion_tokens"] == 3


def test_every_path_needs_the_key_but_the_public_ones(start: Start) -> None:
    live = start(access=Access(key="s3cret"))
    paths = ["/v1/models", "/v1/models/", "//v1/models", "/V1/models", "/v1/models/fake", "/", "/nowhere", "/health/"]
    paths += ["/v1/chat/completions", "/v1/completions", "/HEALTH", "/v1/../health/../v1/models", "/docs"]
    for path in paths:
        for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
            reply = HTTP.request(method, live.url + path)
            assert reply.status_code == 401, (method, path)
            assert reply.headers["www-authenticate"] == "Bearer"
    assert HTTP.get(live.url + "/health").status_code == 200
    for wrong in ("Bearer", "Bearer wrong", "Basic s3cret", "Bearer s3cret x", "s3cret", "Bearer s\u00e9"):
        reply = HTTP.get(live.url + "/v1/models", headers={"authorization": wrong.encode("latin-1")})
        assert message(reply, 401) == "wrong or missing API key"
    for right in ({"authorization": "Bearer s3cret"}, {"authorization": "bearer s3cret"}, {"x-api-key": "s3cret"}):
        assert HTTP.get(live.url + "/v1/models", headers=right).status_code == 200
        assert HTTP.get(live.url + "/v1/models/", headers=right).status_code == 404


def test_host_header(start: Start) -> None:
    live = start()
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", "", "[::1", "a@b"):
        assert "Host header" in message(HTTP.get(live.url + "/health", headers={"host": host}), 403)
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80"):
        assert HTTP.get(live.url + "/health", headers={"host": host}).status_code == 200
    with socket.create_connection(("127.0.0.1", live.port)) as sock:
        sock.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400")


def test_origin(start: Start) -> None:
    live = start(access=Access(origins=frozenset({"https://good.example"})))
    for origin in ("https://evil.example", "null", "http://localhost:1", "https://good.example.evil.example"):
        reply = post(live, "/v1/completions", COMPLETION, origin=origin)
        assert "origin" in message(reply, 403)
        assert "access-control-allow-origin" not in reply.headers
    reply = post(live, "/v1/completions", COMPLETION, origin="https://good.example")
    assert reply.status_code == 200 and reply.headers["access-control-allow-origin"] == "https://good.example"
    assert post(live, "/v1/completions", COMPLETION, origin=live.url).status_code == 200
    ask = {"origin": "https://good.example", "access-control-request-method": "POST"}
    assert HTTP.options(live.url + "/v1/completions", headers=ask).status_code == 204


def test_a_cross_site_form_is_refused(start: Start) -> None:
    live = start()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert "application/json" in message(post(live, "/v1/completions", COMPLETION, content_type=kind), 415)
    good = "application/json; charset=utf-8"
    assert post(live, "/v1/completions", COMPLETION, content_type=good).status_code == 200


def test_a_body_in_another_coding_is_refused(start: Start) -> None:
    """Seen red: a compressed body was called no JSON."""
    live = start()
    for coding in ("gzip", "br", "identity, gzip", "GZIP"):
        reply = post(live, "/v1/completions", gzip.compress(b"{}"), content_encoding=coding)
        assert "Content-Encoding" in message(reply, 415)
    for charset in ("utf-16", "latin-1", '"iso-8859-1"'):
        kind = f"application/json; charset={charset}"
        assert "utf-8" in message(post(live, "/v1/completions", COMPLETION, content_type=kind), 415)
    for kind in ('application/json; charset="UTF-8"', "application/json;charset=utf8", "application/json; x=y"):
        assert post(live, "/v1/completions", COMPLETION, content_type=kind).status_code == 200
    assert post(live, "/v1/completions", COMPLETION, content_encoding="identity").status_code == 200


def test_body_size(start: Start) -> None:
    live = start(limits=Limits(body_bytes=1000))
    assert "1000 bytes" in message(post(live, "/v1/completions", b" " * 1001), 413)

    def chunks():
        for _ in range(30):
            yield b" " * 100

    head = {"content-type": "application/json"}
    assert HTTP.post(live.url + "/v1/completions", content=chunks(), headers=head).status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"prompt": "x", "user": NaN}',
        b'{"a":' * 50_000,
    ],
)
def test_bodies_that_are_not_a_request(start: Start, body: bytes) -> None:
    assert message(post(start(), "/v1/completions", body), 400)


BAD_COMMON = [
    ({"tempurature": 1}, "tempurature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 2}, "n"),
    ({"n": True}, "n"),
    ({"n": 1.0}, "n"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**70}, "seed"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 2.0}, "max_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", 3]}, "stop[1]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "x"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"model": 3}, "model"),
    ({"model": "\ud800"}, "model"),
    ({"stop": "\ud800"}, "stop"),
    ({"stop": {"a": "b"}}, "stop"),
    ({"stop": 3}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["a", None]}, "stop[1]"),
    ({"temperature": 10**400}, "temperature"),
    ({"top_k": True}, "top_k"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"max_tokens": "3"}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"logit_bias": {"1": "1"}}, "logit_bias"),
    ({"logit_bias": {"1": None}}, "logit_bias"),
    ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
    ({"logit_bias": {"\ud800": 1}}, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("change", "param"), BAD_COMMON)
def test_bad_fields_are_named(start: Start, change: dict, param: str) -> None:
    live = start()
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        reply = post(live, path, {**body, **change})
        assert param in message(reply, 400) and reply.json()["error"]["param"] == param, reply.text
        assert "tuple" not in reply.text and len(reply.text) < 500
    assert not live.engine.batches


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "mood": 1}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": "x", "name": "\ud800"}]}, "messages[0].name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_bad_chat_fields(start: Start, change: dict, param: str) -> None:
    reply = post(start(), "/v1/chat/completions", {**CHAT, **change})
    assert message(reply, 400) and reply.json()["error"]["param"] == param, reply.text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [260]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": "a\ud800"}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["x"] * 65}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"echo": True, "max_tokens": 0, "logprobs": 1}, "echo"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_completion_fields(start: Start, change: dict, param: str) -> None:
    reply = post(start(), "/v1/completions", {**COMPLETION, **change})
    assert message(reply, 400) and reply.json()["error"]["param"] == param, reply.text


def test_fields_that_change_nothing_are_accepted(start: Start) -> None:
    live = start(FakeEngine(script(6, b"ok")))
    extra = {"user": "me", "metadata": {"a": "b"}, "store": False, "n": 1, "tools": None, "tool_choice": "none"}
    extra |= {"response_format": {"type": "text"}, "logit_bias": None, "stop": None, "max_tokens": None}
    history = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "audio": None},
        {"role": "user", "content": "hi"},
    ]
    reply = post(live, "/v1/chat/completions", {**CHAT, "messages": history, **extra})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize("extra", [{"tools": []}, {"tools": [], "tool_choice": "auto"}, {"functions": []}])
def test_an_empty_list_of_tools_asks_for_nothing(start: Start, extra: dict) -> None:
    """Clients that always send the field get their answer; a tool in it is refused."""
    assert post(start(), "/v1/chat/completions", {**CHAT, **extra}).status_code == 200


def test_the_model_of_a_request(start: Start) -> None:
    """Another name is 404 as the API has it; before, any name was answered by the one model there is."""
    live = start(name="fake")
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        for other in ("gpt-4o", "Fake", "fake ", "", "x" * 5000):
            reply = post(live, path, {**body, "model": other})
            assert "this server has fake" in message(reply, 404) and len(reply.text) < 500
            error = reply.json()["error"]
            assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert not live.engine.batches
        for fine in ({"model": "fake"}, {"model": None}, {}):
            rest = {name: value for name, value in body.items() if name != "model"}
            assert post(live, path, {**rest, **fine}).status_code == 200
        live.engine.batches.clear()


def test_a_field_whose_name_is_no_text(start: Start) -> None:
    """The reply that named it could not be sent: seen red as an internal error."""
    live = start()
    assert "unknown field" in message(post(live, "/v1/completions", b'{"prompt": "x", "\\ud800": 1}'), 400)
    long = post(live, "/v1/completions", {"prompt": "x", "y" * 100_000: 1})
    assert message(long, 400) and len(long.text) < 3000


def test_unknown_routes_and_methods(start: Start) -> None:
    live = start()
    assert message(HTTP.get(live.url + "/v2"), 404) == "no such route"
    assert message(HTTP.get(live.url + "/v1/completions"), 405)
    assert message(HTTP.post(live.url + "/health"), 405)


def test_a_bundle_without_template_or_tokenizer(start: Start) -> None:
    from dataclasses import replace

    from tests.runtime_text.text_fakes import vocabulary

    live = start(FakeEngine(lambda ids: 65), encode_chat=None, vocabulary=replace(vocabulary(), tokenizer=None))
    assert "no chat template" in message(post(live, "/v1/chat/completions", CHAT), 400)
    assert "no tokenizer" in message(post(live, "/v1/completions", COMPLETION), 400)
    reply = post(live, "/v1/completions", {"prompt": [1, 2], "max_tokens": 3, "temperature": 0, "logprobs": 0})
    assert reply.json()["choices"][0]["logprobs"]["tokens"] == ["65"] * 3


def test_errors_tell_no_paths(start: Start) -> None:
    def fail(messages: list) -> list[int]:
        raise failure

    live = start(encode_chat=fail)
    failure: Exception = GoinferError("damaged: /home/anna/models/m.giw: chunk 3")
    assert message(post(live, "/v1/chat/completions", CHAT), 500) == "damaged: m.giw: chunk 3"
    failure = OSError(2, "No such file", "/home/anna/secret")
    assert message(post(live, "/v1/chat/completions", CHAT), 500) == "internal error: see the server's log"
    failure = TemplateRefusalError("roles must\nalternate")
    assert message(post(live, "/v1/chat/completions", CHAT), 400) == "chat template: roles must alternate"
    failure = UsageError("template: roles must alternate")
    assert message(post(live, "/v1/chat/completions", CHAT), 400) == "template: roles must alternate"
    assert str(ApiError(400, "see https://a.example/b/c and 1/2").body).count("https://a.example/b/c") == 1


def left_alone(live: Live, request: dict) -> None:
    """Send a request on a raw socket, let it run for a few forwards, and hang up."""
    body = json.dumps(request).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", live.port)) as sock:
        sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        deadline = time.monotonic() + 10
        while len(live.engine.batches) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert live.scheduler.load == (1, 0)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_hanging_up_frees_the_slot(start: Start, stream: bool, phase: str) -> None:
    live = start(FakeEngine(lambda ids: 65, delay=0.02, context=100_000, max_rows=16))
    prompt = [1] * 50_000 if phase == "prefill" else [1]
    left_alone(live, {"prompt": prompt, "max_tokens": 50_000, "stream": stream})
    live.wait_idle()
    assert len(live.engine.batches) < 150
    assert live.engine.batches[3] == ([16] if phase == "prefill" else [1])


def test_stopping_the_server_ends_running_answers(start: Start) -> None:
    live = start(FakeEngine(lambda ids: 65, delay=0.02, context=100_000))
    with HTTP.stream(
        "POST", live.url + "/v1/completions", json={**COMPLETION, "max_tokens": 9999, "stream": True}
    ) as r:
        lines = r.iter_lines()
        next(lines)
        live.scheduler.request_stop()
        assert "shutting down" in list(lines)[-2]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOINFER_API_KEY", raising=False)
    with pytest.raises(UsageError, match="--api-key or GOINFER_API_KEY"):
        Address(host=host).access()
    assert Address(host=host, api_key="k").access().key == "k"
    monkeypatch.setenv("GOINFER_API_KEY", "from-environment")
    assert Address(host=host).access().key == "from-environment"
    assert Address(host=host).access().hosts is None
    for key in ("", " ", "k ", "é"):
        with pytest.raises(UsageError, match="api key"):
            Address(host=host, api_key=key).access()


def test_loopback_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOINFER_API_KEY", raising=False)
    for host in ("127.0.0.1", "localhost", "::1", "127.8.8.8"):
        assert is_loopback(host) and Address(host=host).access().key is None
    assert "my.lan" in (Address(allow_hosts=("my.lan",)).access().hosts or ())
    assert host_name("[::1]:80") == "::1" and host_name("A.b:3") == "a.b"


def test_a_port_in_use_is_one_line() -> None:
    sock = bind(Address(port=0))
    with pytest.raises(BindError, match=r"cannot listen on 127\.0\.0\.1 port \d+: Address already in use"):
        bind(Address(port=sock.getsockname()[1]))
    sock.close()
    with pytest.raises(UsageError, match="port 70000"):
        bind(Address(port=70000))
    for address in (Address(host="no.such.host.invalid"), Address(host="203.0.113.7")):
        with pytest.raises(BindError, match="cannot listen"):
            bind(address)
