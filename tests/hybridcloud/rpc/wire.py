"""Raw requests to the endpoint, good and bad; without it tests could only send what the client would."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import urllib3

from hybridcloud.rpc.sign import sign
from tests.hybridcloud.rpc.orchard import SECRET_VALUE

if TYPE_CHECKING:
    from hybridcloud.testutils.rpc import RpcServer

COUNT = "/api/0/internal/rpc/orchard/count/"
STORE = "/api/0/internal/rpc/orchard/store/"
BATCH = "/api/0/internal/rpc/batch/"
GOOD = b'{"meta":{"to":"control"},"args":{"number":1}}'


@dataclass(frozen=True)
class Answer:
    """A reply, and what it gives away."""

    status: int
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found

    def leaks(self) -> list[str]:
        """Return what an error reply must not hold, and does."""
        never = (
            SECRET_VALUE,
            "newest-secret",
            "previous-secret",
            "Traceback",
            "File ",
            ".py",
            "input",
            "Rpcsignature",
        )
        text = self.body.decode()
        return [word for word in never if word in text]


def post(
    server: RpcServer,
    path: str = COUNT,
    body: bytes = GOOD,
    *,
    headers: dict[str, str] | None = None,
    signed_path: str | None = None,
    signed_body: bytes | None = None,
    age: float = 0,
    method: str = "POST",
    sent: Any = None,
) -> Answer:
    """Send one request as it is said, signed unless an Authorization header is given."""
    signature = sign(
        signed_path or path, body if signed_body is None else signed_body, now=time.time() - age
    )
    given = {"Authorization": signature, "Content-Type": "application/json", **(headers or {})}
    response = urllib3.request(
        method,
        server.address + path,
        body=body if sent is None else sent,
        headers=given,
        retries=False,
        timeout=10,
    )
    return Answer(response.status, response.data)
