"""Signs requests between silos and verifies them; without it anyone on the network could call every method.

``Authorization: Rpcsignature v1:<seconds>:<hex>``, where hex is HMAC-SHA256 over version, method,
path, timestamp and body. The path covers service and method, so a signature cannot move to another
method; the timestamp bounds for how long a captured request is good.
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
    """Return the ``Authorization`` header of a request, made with the newest secret.

    Raises:
        RpcSetupError: no secret is set, or an empty one.
    """
    timestamp = str(int(now))
    return (
        f"{_SCHEME} {_VERSION}:{timestamp}:{_digest(_secrets()[0], method, path, timestamp, body)}"
    )


def verify(header: str, path: str, body: bytes, *, now: float, method: str = "POST") -> None:
    """Accept a request whose header was made with one of the secrets, not long ago.

    Raises:
        RpcAuthenticationError: it was not; the text says no more than which part failed.
        RpcSetupError: no secret is set, or an empty one.
    """
    secrets = _secrets()
    match = _HEADER.fullmatch(header)
    if match is None:
        raise RpcAuthenticationError("No signature: the Authorization header is not ours.")
    timestamp, given = match.groups()
    # Every secret is tried, whichever fits, so that the time tells nothing of which one it was.
    fits = [
        hmac.compare_digest(_digest(secret, method, path, timestamp, body), given)
        for secret in secrets
    ]
    if not any(fits):
        raise RpcAuthenticationError("Wrong signature: made with another secret, path or body.")
    # After the signature: only who holds a secret is told about the clock.
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
            f"{what} secret in HYBRIDCLOUD['RPC_SECRETS']. Give all silos the same non-empty "
            f"secrets, the newest first."
        )
    return secrets


def _digest(secret: str, method: str, path: str, timestamp: str, body: bytes) -> str:
    # Only the body may hold a newline: the parts before it cannot run into one another.
    head = "\n".join((_VERSION, method, path.replace("\n", "%0A"), timestamp, ""))
    return hmac.new(secret.encode(), head.encode() + body, hashlib.sha256).hexdigest()
