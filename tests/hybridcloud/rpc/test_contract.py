"""The bytes on the wire: a release that changes them cannot talk to the one before."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from django.test import RequestFactory

import fixtures
from hybridcloud import rpc
from hybridcloud.causation import Causation, inside
from hybridcloud.rpc import client as client_module
from hybridcloud.rpc import endpoint as endpoint_module
from hybridcloud.rpc.client import Outgoing, Reply, transport
from hybridcloud.rpc.sign import sign, verify
from hybridcloud.testutils.rpc import _answer
from tests.hybridcloud.rpc.orchard import Fruit, Kind, orchard

DATA = Path(fixtures.__file__).parent / "data" / "rpc"
GOLDEN: dict[str, dict[str, Any]] = json.loads((DATA / "golden.json").read_text())


class Frozen:
    """A clock that stands at the golden requests' time."""

    @staticmethod
    def time() -> float:
        return 1_700_000_000.0


class Kept:
    """A transport that keeps the request, and replies with the golden answer."""

    round_trips_local_calls = False

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply = Reply(reply["status"], reply["body"].encode())

    def send(self, request: Outgoing) -> Reply:
        self.request = request
        return self.reply


def do(name: str) -> Any:
    if name == "call":
        fruit = Fruit(organization_id=1, name="Żółć", kind=Kind.PEAR)
        with inside(Causation("c0ffee", 2, ("A", "B"))):
            return orchard.store(fruit=fruit, weights=[0.5], tags={"a": 1}, payload={"b": [None]})
    if name == "batch":
        with rpc.batch() as b:
            b.call(orchard.count, number=1)
            b.call(orchard.odd_names, schema=1, json="two\nlines", model_config=False)
        return [item.result() for item in b.items]
    with pytest.raises(rpc.RpcValidationError) as caught:
        orchard.store(fruit=Fruit.model_construct(weight=float("nan")))
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture(autouse=True)
def _golden_time_and_secret(monkeypatch: pytest.MonkeyPatch, configure: Any) -> Any:
    monkeypatch.setattr(client_module, "time", Frozen)
    monkeypatch.setattr(endpoint_module, "time", Frozen)
    with configure(RPC_SECRETS=["golden-secret"]):
        yield


@pytest.mark.parametrize("name", GOLDEN)
def test_a_call_is_written_as_it_always_was(name: str) -> None:
    golden = GOLDEN[name]
    kept = Kept(golden["reply"])
    with transport.override(kept):
        assert (
            json.loads(json.dumps(do(name), default=lambda m: m.model_dump(mode="json")))
            == (golden["result"])
        )
    assert kept.request.path == golden["request"]["path"]
    assert kept.request.body.decode() == golden["request"]["body"]
    assert kept.request.headers["Authorization"] == golden["request"]["authorization"]
    assert kept.request.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_call_of_an_older_release_is_answered_as_it_always_was(name: str) -> None:
    request, reply = GOLDEN[name]["request"], GOLDEN[name]["reply"]
    answer = _answer(
        RequestFactory().post(
            request["path"],
            request["body"].encode(),
            content_type="application/json",
            headers={"Authorization": request["authorization"]},
        )
    )
    assert (answer.status_code, answer.content.decode()) == (reply["status"], reply["body"])


def test_a_signature_is_made_as_it_always_was() -> None:
    for golden in GOLDEN.values():
        path, body = golden["request"]["path"], golden["request"]["body"].encode()
        covered = b"v1\nPOST\n" + path.encode() + b"\n1700000000\n" + body
        digest = hmac.new(b"golden-secret", covered, hashlib.sha256).hexdigest()
        assert golden["request"]["authorization"] == f"Rpcsignature v1:1700000000:{digest}"
        assert sign(path, body, now=1_700_000_000.9) == golden["request"]["authorization"]
        verify(golden["request"]["authorization"], path, body, now=1_700_000_010)
