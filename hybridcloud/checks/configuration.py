"""Checks of HYBRIDCLOUD: its keys, pinned options and RPC secrets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's

from hybridcloud.conf import settings
from hybridcloud.errors import ConfigurationError, OptionValueError, UnknownOptionError
from hybridcloud.options.definition import find_definition, require_accepted
from silos.mode import SiloMode, get_process_silo

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST_SECRET: Final = 32
_LEAST_DISTINCT: Final = 8
_PLACEHOLDERS: Final = ("example", "change", "default", "secret", "django-insecure")


def check_settings(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E001, E002: HYBRIDCLOUD has known keys and valid values."""
    try:
        settings()
    except ConfigurationError as exc:
        unknown = str(exc).startswith("Unknown key")
        return [Error(str(exc), id="hybridcloud.E001" if unknown else "hybridcloud.E002")]
    except TypeError as exc:
        return [Error(f"Wrong value in HYBRIDCLOUD: {exc}.", id="hybridcloud.E002")]
    return []


def check_pinned_options(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E001, E002: pinned options exist and have valid values."""
    found: list[CheckMessage] = []
    for key, value in _pinned().items():
        try:
            require_accepted(find_definition(key), value, where="in HYBRIDCLOUD['OPTIONS']")
        except UnknownOptionError as exc:
            found.append(Error(str(exc), id="hybridcloud.E001"))
        except OptionValueError as exc:
            found.append(Error(str(exc), id="hybridcloud.E002"))
    return found


def check_secret_strength(**_: Any) -> list[CheckMessage]:
    """hybridcloud.E030: RPC secrets are set and hard to guess.

    A guessed secret allows every call in every silo.
    """
    secrets = _secrets()
    if not secrets and get_process_silo().mode is not SiloMode.MONOLITH:
        return [
            Error(
                "No RPC secret: this silo can neither call other silos nor be called.",
                hint='Set HYBRIDCLOUD["RPC_SECRETS"] to the same secrets in every silo.',
                id="hybridcloud.E030",
            )
        ]
    return [
        Error(
            # By its position, because a check must not print a secret.
            f"RPC secret {place} of {len(secrets)} {weakness}.",
            hint="Use python -c 'import secrets; print(secrets.token_urlsafe(48))'.",
            id="hybridcloud.E030",
        )
        for place, secret in enumerate(secrets, 1)
        for weakness in _weaknesses(secret)
    ]


def check_rotation(**_: Any) -> list[CheckMessage]:
    """hybridcloud.W033: RPC secrets can be rotated.

    If there is only one, silos refuse each other's calls while it is changed.
    """
    if len(_secrets()) != 1:
        return []
    return [
        Warning(
            "Only one RPC secret: silos would refuse calls while it is changed.",
            hint='Set HYBRIDCLOUD["RPC_SECRETS"] to a list: the first signs, all verify.',
            id="hybridcloud.W033",
        )
    ]


def _weaknesses(secret: str) -> Iterator[str]:
    """Yield why a secret is easy to guess, at most one reason."""
    if len(secret) < _LEAST_SECRET:
        yield f"has fewer than {_LEAST_SECRET} characters"
    elif len(set(secret)) < _LEAST_DISTINCT:
        yield f"has fewer than {_LEAST_DISTINCT} different characters"
    elif secret.lower().startswith(_PLACEHOLDERS):
        yield "looks like a placeholder"


def _secrets() -> tuple[str, ...]:
    try:
        return settings().secrets()
    except (ConfigurationError, TypeError):
        # check_settings reports it.
        return ()


def _pinned() -> dict[str, Any]:
    try:
        return dict(settings().options)
    except (ConfigurationError, TypeError, ValueError):
        return {}
