"""Options are pinned for a block and free again after it; without it one test would switch off another's shards."""

from __future__ import annotations

import pytest

from hybridcloud import options
from hybridcloud.errors import UnknownOptionError
from hybridcloud.outbox.store.switches import DISABLED_ORGANIZATIONS, DISABLED_USERS
from hybridcloud.testutils import override_options

pytestmark = pytest.mark.django_db


def test_options_are_pinned_inside_the_block_only() -> None:
    with override_options({DISABLED_USERS: [7]}):
        with override_options({DISABLED_ORGANIZATIONS: [42]}):
            assert options.get(DISABLED_USERS) == [7]
            assert options.get(DISABLED_ORGANIZATIONS) == [42]
        assert options.get(DISABLED_ORGANIZATIONS) == []
    assert options.get(DISABLED_USERS) == []


@override_options({DISABLED_USERS: [7]})
def test_options_are_pinned_in_a_decorated_function() -> None:
    assert options.get(DISABLED_USERS) == [7]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UnknownOptionError), override_options({"hybridcloud.disabled_shard": []}):
        pass
