"""The URL patterns of the RPC endpoint.

``urlpatterns += [path("", include("hybridcloud.rpc.urls"))]``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib.auth.decorators import login_not_required
from django.db.transaction import non_atomic_requests
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_exempt

from .client import PREFIX
from .endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpResponse


def patterns(endpoint: Endpoint) -> list[URLPattern]:
    """Return the URL patterns of an endpoint."""
    root = PREFIX.removeprefix("/")
    return [
        path(f"{root}batch/", _open(endpoint.batch), name="hybridcloud-rpc-batch"),
        path(f"{root}<slug:service>/<slug:method>/", _open(endpoint.call), name="hybridcloud-rpc"),
    ]


def _open(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    # The signature replaces session, login and CSRF token. Methods open their own transactions.
    return non_atomic_requests(login_not_required(csrf_exempt(view)))


urlpatterns = patterns(Endpoint())
