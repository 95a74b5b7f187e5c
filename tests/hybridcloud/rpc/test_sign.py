"""Signatures alone: what they cover, and which secrets make and accept them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hybridcloud.rpc import RpcAuthenticationError, RpcSetupError
from hybridcloud.rpc.sign import sign, verify

NOW = 1_700_000_000.0
PATH = "/api/0/internal/rpc/orchard/count/"
BODY = b'{"args":{"number":1}}'


def test_what_was_signed_is_accepted() -> None:
    verify(sign(PATH, BODY, now=NOW), PATH, BODY, now=NOW)


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/api/0/internal/rpc/orchard/fail/"},
        {"body": BODY + b" "},
        {"body": b""},
        {"method": "PUT"},
    ],
    ids=["path", "body", "no body", "method"],
)
def test_a_signature_is_good_for_one_method_path_and_body(changed: dict[str, Any]) -> None:
    header = sign(PATH, BODY, now=NOW)
    with pytest.raises(RpcAuthenticationError, match=r"^Wrong signature"):
        verify(header, **{"path": PATH, "body": BODY, "now": NOW, **changed})


def test_the_timestamp_is_covered() -> None:
    header = sign(PATH, BODY, now=NOW).replace(str(int(NOW)), str(int(NOW) + 1))
    with pytest.raises(RpcAuthenticationError, match=r"^Wrong signature"):
        verify(header, PATH, BODY, now=NOW)


def test_path_and_body_do_not_run_into_one_another() -> None:
    header = sign(f"/a\n{NOW:.0f}\nb", b"x", now=NOW)
    with pytest.raises(RpcAuthenticationError, match=r"^Wrong signature"):
        verify(header, "/a", f"b\n{NOW:.0f}\nx".encode(), now=NOW)


@pytest.mark.parametrize("offset", [-60, 0, 60])
def test_a_clock_may_be_off_by_the_window(offset: int) -> None:
    verify(sign(PATH, BODY, now=NOW), PATH, BODY, now=NOW + offset)


@pytest.mark.parametrize("offset", [-61, 61], ids=["future", "stale"])
def test_a_timestamp_outside_the_window_is_refused(offset: int) -> None:
    with pytest.raises(RpcAuthenticationError, match=r"^Wrong time.*RPC_CLOCK_WINDOW"):
        verify(sign(PATH, BODY, now=NOW), PATH, BODY, now=NOW + offset)


def test_the_first_secret_signs_and_every_listed_one_verifies(configure: Any) -> None:
    with configure(RPC_SECRETS=["old"]):
        old = sign(PATH, BODY, now=NOW)
    with configure(RPC_SECRETS=["new", "old"]):
        verify(old, PATH, BODY, now=NOW)
        rotated = sign(PATH, BODY, now=NOW)
    with configure(RPC_SECRETS=["new"]):
        verify(rotated, PATH, BODY, now=NOW)
        with pytest.raises(RpcAuthenticationError, match=r"^Wrong signature"):
            verify(old, PATH, BODY, now=NOW)


def test_secrets_may_come_from_a_callable_that_changes_its_answer(configure: Any) -> None:
    secrets = ["one"]
    with configure(RPC_SECRETS=lambda: secrets[0]):
        first = sign(PATH, BODY, now=NOW)
        secrets[0] = "two"
        assert sign(PATH, BODY, now=NOW) != first


@pytest.mark.parametrize(("secrets", "word"), [((), "No"), ("", "Empty"), (["new", ""], "Empty")])
def test_a_missing_or_empty_secret_is_a_setup_error_on_both_sides(
    configure: Any, secrets: Any, word: str
) -> None:
    header = sign(PATH, BODY, now=NOW)
    with configure(RPC_SECRETS=secrets):
        with pytest.raises(RpcSetupError, match=rf"^{word} secret.*RPC_SECRETS"):
            sign(PATH, BODY, now=NOW)
        with pytest.raises(RpcSetupError, match=rf"^{word} secret.*RPC_SECRETS"):
            verify(header, PATH, BODY, now=NOW)


GOOD = "v1:1700000000:" + "0" * 64
MALFORMED = [
    "",
    GOOD,
    f"Bearer {GOOD}",
    f"rpcsignature {GOOD}",
    f"Rpcsignature {GOOD} ",
    f"Rpcsignature {GOOD}\n",
    f"Rpcsignature {GOOD[:-1]}",
    f"Rpcsignature {GOOD[:-1]}G",
    "Rpcsignature v1:-1:" + "0" * 64,
    "Rpcsignature v1:1e9:" + "0" * 64,
    "Rpcsignature v1:" + "9" * 5000 + ":" + "0" * 64,
    "Rpcsignature v1:\u0661:" + "0" * 64,
    "Rpcsignature v2:1700000000:" + "0" * 64,
]


@pytest.mark.parametrize("header", MALFORMED)
def test_a_header_that_is_not_ours_is_refused(header: str) -> None:
    with pytest.raises(RpcAuthenticationError, match=r"^No signature"):
        verify(header, PATH, BODY, now=NOW)


def test_a_refusal_names_no_secret_and_no_signature(configure: Any) -> None:
    for secret, body in product(["newest-secret", "s3cret-two"], [BODY, b"x"]):
        with configure(RPC_SECRETS=["newest-secret"]):
            good = sign(PATH, BODY, now=NOW)
        with (
            configure(RPC_SECRETS=[secret]),
            pytest.raises(RpcAuthenticationError) as caught,
        ):
            verify(good, PATH, body, now=NOW + 100)
        assert secret not in str(caught.value)
        assert good.rpartition(":")[2] not in str(caught.value)
