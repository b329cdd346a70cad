"""Names of hidden models do not reach an agent in any spelling."""

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from seer.errors import RemoteError
from seer.rpc.interface._blind import Scrubber
from seer.rpc.values._codec import decode, encode
from tests.rpc.serving import http, serving

NAME = "google/gemma-2-9b"
PATH = "/models/google--gemma-2-9b"


@pytest.mark.parametrize(
    "text",
    [
        NAME,
        PATH,
        "google--gemma-2-9b",
        "google_gemma-2-9b",
        "MODEL_GOOGLE_GEMMA_2_9B_PATH",
        "Gemma-2-9B",
        "gemma_2_9b",
        f"{PATH}/config.json",
        f"https://example.org/{NAME}/resolve",
        "my-gemma-2-9b-it",
    ],
)
def test_every_spelling_is_replaced(text: str) -> None:
    scrubbed = Scrubber({NAME: "model_0"}, {NAME: PATH}).text(f"see {text}!")
    assert "gemma" not in scrubbed.lower()
    assert "model_0" in scrubbed


def test_plain_words_are_replaced_only_where_they_stand_alone() -> None:
    scrubber = Scrubber({"org/base": "model_0"}, {"org/base": "/srv/weights"})
    assert scrubber.text("database of base models, Base.") == "database of model_0 models, model_0."


def test_words_of_the_alias_and_short_ones_are_left_alone() -> None:
    scrubber = Scrubber({"a/model": "model_0"}, {"a/model": "/m/model_0"})
    assert scrubber.text("the model model_0 in a/model at /m/model_0") == (
        "the model model_0 in model_0 at model_0"
    )


def test_letters_that_only_look_alike_in_lower_case_are_replaced_too() -> None:
    assert "mi" not in Scrubber({"x/mistral-7": "model_0"}, {}).text("mi\u017ftral-7")


def test_encoded_results_stay_json() -> None:
    scrubber = Scrubber({NAME: "model_0"}, {NAME: PATH})
    data = json.dumps({"name": NAME, "é": [PATH, 'quoted "gemma-2-9b"']}).encode()
    assert json.loads(scrubber.data(data)) == {
        "name": "model_0",
        "é": ["model_0", 'quoted "model_0"'],
    }


def test_without_hidden_models_nothing_changes() -> None:
    scrubber = Scrubber({}, {"a/b": "/m"})
    assert scrubber.text("a/b /m") == "a/b /m"
    assert scrubber.data(b"a/b") == b"a/b"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_bytes_are_scrubbed_in_every_usual_encoding(encoding: str) -> None:
    scrubber = Scrubber({NAME: "model_0"}, {NAME: PATH})
    data = f"x {PATH}/config.json and GEMMA-2-9b".encode(encoding)
    assert scrubber.value(data) == "x model_0/config.json and model_0".encode(encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-32-be"])
def test_plain_words_in_bytes_are_replaced_only_where_they_stand_alone(encoding: str) -> None:
    scrubber = Scrubber({"org/base": "model_0"}, {})
    data = "database of base models".encode(encoding)
    assert scrubber.value(data) == "database of model_0 models".encode(encoding)


def sent(value: object, *, frames: bool = True) -> Any:
    """A value as it arrives from an interface with a hidden model."""
    scrubber = Scrubber({NAME: "model_0"}, {NAME: PATH})
    buffers: list[Any] = []
    text = scrubber.data(encode(value, buffers, frames=frames, scrub=scrubber.value))
    return decode(text, [bytes(buffer) for buffer in buffers])


def test_bytes_and_arrays_of_text_in_results_are_scrubbed() -> None:
    texts = np.array([["a", NAME], ["gemma-2-9b!", "b"]])
    numbers = np.frombuffer(b"gemma-2-9b__", np.uint8)
    value: dict[object, object] = {
        "bytes": PATH.encode(),
        b"google/gemma-2-9b": [bytearray(NAME.encode()), memoryview(NAME.encode())],
        "texts": texts,
        "raw": np.array([NAME.encode(), b"ok"]),
        "item": np.str_(NAME),
        "numbers": numbers,
    }
    found = sent(value)
    assert found["bytes"] == b"model_0"
    assert found[b"model_0"] == [b"model_0", b"model_0"]
    assert found["texts"].tolist() == [["a", "model_0"], ["model_0!", "b"]]
    assert found["raw"].tolist() == [b"model_0", b"ok"]
    assert found["item"] == "model_0"
    assert found["numbers"].tolist() == numbers.tolist()
    assert sent({"a": NAME.encode(), "b": texts}, frames=False) == {
        "a": "bW9kZWxfMA==",
        "b": [["a", "model_0"], ["model_0!", "b"]],
    }


def test_names_that_json_escapes_are_replaced_too() -> None:
    name = 'söme "quoted" näme'
    scrubber = Scrubber({name: "model_0"}, {})
    for ensure_ascii in (True, False):
        text = json.dumps({"error": f"no {name}"}, ensure_ascii=ensure_ascii)
        assert json.loads(scrubber.data(text.encode())) == {"error": "no model_0"}


SERVED = """
    from collections.abc import Iterator
    import numpy as np

    NAME = "google/gemma-2-9b"

    @expose
    def data() -> dict:
        return {"bytes": NAME.encode(), "texts": np.array(["x", NAME]), "text": NAME}

    @expose
    def pieces() -> Iterator[bytes]:
        yield NAME.encode()

    @expose
    async def fail(kind: str) -> None:
        try:
            raise OSError(f"no {NAME}")
        except OSError as error:
            raise type("Gemma_2_9b", (ValueError,), {})(f"{kind} {NAME}") from error

    @expose
    def wrong(x: int) -> object:
        return object() if x else {NAME: object()}
"""


@pytest.mark.full
def test_a_served_interface_tells_a_hidden_models_name_in_no_form() -> None:
    with serving(SERVED, models={NAME: PATH}, hidden={NAME: "model_0"}) as served:
        gate = served.gate()
        found = gate.call("data")
        assert (found["bytes"], found["text"]) == (b"model_0", "model_0")
        assert found["texts"].tolist() == ["x", "model_0"]
        assert list(gate.stream("pieces")) == [b"model_0"]
        plain = http(served.socket_path("a"), "POST", "/v1/call/data", {})
        assert plain == {"bytes": "bW9kZWxfMA==", "texts": ["x", "model_0"], "text": "model_0"}
        with pytest.raises(ValueError, match="^oh model_0$") as caught:
            gate.call("fail", ("oh",))
        assert isinstance(caught.value, RemoteError)
        assert caught.value.remote_traceback == ""
        assert "gemma" not in caught.value.type_name.lower()
        with pytest.raises(TypeError) as told:
            gate.call("wrong", (0,))
        assert "gemma" not in str(told.value)


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_digest_of_the_interface_file_confirms_no_guess_at_a_hidden_name(replicas: int) -> None:
    hidden: dict[str, Any] = {"models": {NAME: PATH}, "hidden": {NAME: "model_0"}}
    with serving(SERVED, replicas=replicas, **hidden) as served:
        digest = hashlib.sha256(served.file.read_bytes()).hexdigest()
        for reloaded in (False, True):
            if reloaded:
                served.control("POST", "/v1/reload")
            for path in ("/v1/schema", "/v1/health", "/v1/budget"):
                shown = json.dumps(http(served.socket_path("a"), "GET", path))
                assert digest not in shown, path
        # The controller's record keeps the real name.
        assert served.control("GET", "/v1/schema")["source_hash"] == digest
