"""Signs requests between silos and verifies their signatures.

``Authorization: Rpcsignature v1:<seconds>:<hex>``, where hex is HMAC-SHA256 over version, HTTP
method, path, timestamp and body. The path contains service and method, so a signature is not valid
for another method. The timestamp limits how long a captured request can be replayed.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from hybridcloud.conf import settings

from .errors import RpcAuthenticationError, RpcSetupError

_SCHEME = "Rpcsignature"
_VERSION = "v1"
_HEADER = re.compile(rf"{_SCHEME} {_VERSION}:([0-9]{{1,12}}):([0-9a-f]{{64}})", re.ASCII)


def sign(path: str, body: bytes, *, now: float, method: str = "POST") -> str:
    """Return a request's ``Authorization`` header, by the newest secret.

    Raises:
        RpcSetupError: no secret is set, or one is empty.
    """
    timestamp = str(int(now))
    return (
        f"{_SCHEME} {_VERSION}:{timestamp}:{_digest(_secrets()[0], method, path, timestamp, body)}"
    )


def verify(header: str, path: str, body: bytes, *, now: float, method: str = "POST") -> None:
    """Verify that one of the secrets signed a request recently.

    Raises:
        RpcAuthenticationError: the header, the signature or the time is wrong; the message says
            only which of them.
        RpcSetupError: no secret is set, or one is empty.
    """
    secrets = _secrets()
    match = _HEADER.fullmatch(header)
    if match is None:
        raise RpcAuthenticationError(
            "No signature: the Authorization header is missing or invalid."
        )
    timestamp, given = match.groups()
    # Every secret is tried, even after a match, so that the time does not reveal which one matched.
    fits = [
        hmac.compare_digest(_digest(secret, method, path, timestamp, body), given)
        for secret in secrets
    ]
    if not any(fits):
        raise RpcAuthenticationError(
            "Wrong signature: it was made with another secret, path or body."
        )
    # After the signature: only a caller that holds a secret may learn about the clock.
    if abs(now - int(timestamp)) > settings().rpc_clock_window:
        raise RpcAuthenticationError(
            "Wrong time: the request is older or newer than RPC_CLOCK_WINDOW allows. Compare the "
            "clocks of both silos."
        )


def _secrets() -> tuple[str, ...]:
    secrets = settings().secrets()
    if not secrets or not all(secrets):
        what = "Empty" if secrets else "No"
        raise RpcSetupError(
            f"{what} secret in HYBRIDCLOUD['RPC_SECRETS']. Set the same non-empty secrets in all "
            f"silos, newest first."
        )
    return secrets


def _digest(secret: str, method: str, path: str, timestamp: str, body: bytes) -> str:
    # Only the body may contain a newline, so the boundaries of the other parts are unambiguous.
    head = "\n".join((_VERSION, method, path.replace("\n", "%0A"), timestamp, ""))
    return hmac.new(secret.encode(), head.encode() + body, hashlib.sha256).hexdigest()
