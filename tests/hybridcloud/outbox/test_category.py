"""Categories and scopes: mistakes fail at import, each with its message, and numbers are looked up."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from fixtures.acme.categories import Category, Scope
from hybridcloud.errors import ConfigurationError, InvalidOutboxError
from hybridcloud.outbox import (
    CellOutbox,
    ControlOutbox,
    Delivery,
    OnFailure,
    OutboxCategory,
    OutboxScope,
    scope_categories,
)
from hybridcloud.outbox.declare import category as module
from hybridcloud.outbox.declare import scope as scopes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    with module.restored_declarations():
        yield


def make_category(**members: int) -> Any:
    return OutboxCategory("Kind", members, module=__name__, qualname="Kind")


class TestNumbers:
    def test_scope_and_category_are_found_by_their_numbers(self) -> None:
        assert module.find_category(3) is Category.ORGANIZATION_MEMBER_UPDATE
        assert scopes.find_scope(1) is Scope.USER_SCOPE
        assert module.find_category(7777) is None
        assert scopes.find_scope(7777) is None

    def test_names_of_unknown_numbers_say_the_number(self) -> None:
        assert module.category_name(3) == "ORGANIZATION_MEMBER_UPDATE"
        assert module.category_name(7777) == "category 7777"
        assert scopes.scope_name(0) == "ORGANIZATION_SCOPE"
        assert scopes.scope_name(7777) == "scope 7777"

    def test_a_scope_is_an_integer_that_survives_pickling(self) -> None:
        assert Scope(0) is Scope.ORGANIZATION_SCOPE
        assert Scope.USER_SCOPE == 1
        assert pickle.loads(pickle.dumps(Scope.USER_SCOPE)) is Scope.USER_SCOPE

    def test_a_new_category_changes_choices_and_no_field(self) -> None:
        before = module.category_choices()
        make_category(FRESH=8001)
        assert (8001, "FRESH") in module.category_choices()
        assert (8001, "FRESH") not in before
        choices = CellOutbox._meta.get_field("category").deconstruct()[3]["choices"]
        assert choices is module.category_choices

    def test_a_category_knows_its_scope(self) -> None:
        assert Category.AUDIT_LOG_EVENT.get_scope() is Scope.AUDIT_LOG_SCOPE

    def test_reloading_a_module_is_no_clash(self) -> None:
        for _ in range(2):
            kind = make_category(A=8001)
            scope = _scope(kind, A=scope_categories(8001, {kind.A}))
        assert module.find_category(8001) is kind.A
        assert scopes.find_scope(8001) is scope.A
        assert kind.A.get_scope() is scope.A

    def test_a_reloaded_class_forgets_numbers_that_it_no_longer_has(self) -> None:
        make_category(A=8001, B=8002)
        make_category(A=8001)
        assert module.find_category(8002) is None


def _scope(kind: Any, name: str = "Lane", **members: Any) -> Any:
    """Declare a scope class as an app's module would."""
    space = OutboxScope.__class__.__prepare__(name, (OutboxScope,), categories=kind)
    space["__module__"], space["__qualname__"] = __name__, name
    for member, value in members.items():
        space[member] = value
    return OutboxScope.__class__(name, (OutboxScope,), space, categories=kind)


class TestMistakes:
    def test_two_categories_of_a_class_with_one_number(self) -> None:
        with pytest.raises(ConfigurationError, match=r"8001: category Kind\.B .* Kind\.A"):
            make_category(A=8001, B=8001)

    def test_two_categories_of_different_apps_with_one_number(self) -> None:
        with pytest.raises(
            ConfigurationError,
            match=r"Duplicate number 3: category .*Kind\.MINE has it.*"
            r"fixtures\.acme\.categories\.Category\.ORGANIZATION_MEMBER_UPDATE",
        ):
            make_category(MINE=3)
        assert module.find_category(3) is Category.ORGANIZATION_MEMBER_UPDATE

    @pytest.mark.parametrize("number", [-1, 10_000])
    def test_a_category_out_of_range(self, number: int) -> None:
        with pytest.raises(ConfigurationError, match=rf"Number {number} out of range: .*Kind\.A"):
            make_category(A=number)

    def test_the_framework_has_numbers_of_its_own(self) -> None:
        kind = OutboxCategory("Own", {"A": 10_001}, module="hybridcloud.events.own")
        assert module.find_category(10_001) is kind.A  # type: ignore[attr-defined]

    def test_two_scopes_of_a_class_with_one_number(self) -> None:
        kind = make_category(A=8001, B=8002)
        with pytest.raises(ConfigurationError, match=r"8001: scope Lane\.TWO .* Lane\.ONE"):
            _scope(kind, ONE=scope_categories(8001, {kind.A}), TWO=scope_categories(8001, {kind.B}))

    def test_two_scopes_of_different_apps_with_one_number(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(
            ConfigurationError, match=r"Duplicate number 0: scope .*Lane\.ONE.*ORGANIZATION_SCOPE"
        ):
            _scope(kind, ONE=scope_categories(0, {kind.A}))
        assert scopes.find_scope(0) is Scope.ORGANIZATION_SCOPE
        assert kind in module.categories_without_scope()

    @pytest.mark.parametrize("number", [-1, 10_000])
    def test_a_scope_out_of_range(self, number: int) -> None:
        kind = make_category(A=8001)
        with pytest.raises(ConfigurationError, match=rf"Number {number} out of range: .*Lane\.ONE"):
            _scope(kind, ONE=scope_categories(number, {kind.A}))

    def test_a_category_in_no_scope(self) -> None:
        kind = make_category(A=8001, B=8002)
        with pytest.raises(ConfigurationError, match=r"Category in no scope: Kind\.B, of .*Lane"):
            _scope(kind, ONE=scope_categories(8001, {kind.A}))

    def test_a_category_in_two_scopes(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(
            ConfigurationError, match=r"two scopes: Kind\.A is in .*Lane\.ONE and in Lane\.TWO"
        ):
            _scope(kind, ONE=scope_categories(8001, {kind.A}), TWO=scope_categories(8002, {kind.A}))

    def test_a_category_in_two_scopes_by_retirement(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(ConfigurationError, match=r"two scopes: Kind\.A"):
            _scope(
                kind,
                ONE=scope_categories(8001, {kind.A}),
                TWO=scope_categories(8002, set(), retired={kind.A}),
            )

    def test_a_category_in_scopes_of_two_classes(self) -> None:
        kind = make_category(A=8001)
        _scope(kind, ONE=scope_categories(8001, {kind.A}))
        with pytest.raises(
            ConfigurationError, match=r"two scopes: Kind\.A is in .*Lane\.ONE.*Road"
        ):
            _scope(kind, "Road", ONE=scope_categories(8002, {kind.A}))

    def test_a_category_in_use_and_retired(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(ConfigurationError, match=r"in use and retired: Kind\.A in .*Lane\.ONE"):
            _scope(kind, ONE=scope_categories(8001, {kind.A}, retired={kind.A}))

    def test_a_category_of_a_class_that_is_not_named(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(
            ConfigurationError, match=r"Foreign category: Category\.USER_UPDATE in .*Lane\.ONE"
        ):
            _scope(kind, ONE=scope_categories(8001, {kind.A, Category.USER_UPDATE}))

    def test_a_number_where_a_category_belongs(self) -> None:
        kind = make_category(A=8001)
        numbers: Any = {8001}
        with pytest.raises(ConfigurationError, match=r"Foreign category: int\.8001 in .*Lane\.ONE"):
            _scope(kind, ONE=scope_categories(8001, numbers))

    def test_a_scope_class_without_categories(self) -> None:
        with pytest.raises(ConfigurationError, match=r"No categories named by scope class .*Bare"):

            class Bare(OutboxScope):
                ONE = scope_categories(8001, set())

    def test_a_scope_that_is_only_a_number(self) -> None:
        kind = make_category(A=8001)
        with pytest.raises(ConfigurationError, match=r"Scope without categories: .*Lane\.ONE is 8"):
            _scope(kind, ONE=8001)

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"atomic": True}, "atomic"),
            ({"on_failure": OnFailure.BLOCK_SHARD}, "on_failure"),
            ({"max_attempts": 3}, "max_attempts"),
        ],
    )
    def test_at_most_once_contradicted(self, given: Any, what: str) -> None:
        kind = make_category(A=8001)
        with pytest.raises(
            ConfigurationError, match=rf"Lane\.ONE: AT_MOST_ONCE cannot be combined with {what}"
        ):
            _scope(
                kind,
                ONE=scope_categories(8001, {kind.A}, delivery=Delivery.AT_MOST_ONCE, **given),
            )

    @pytest.mark.parametrize(
        ("given", "what"),
        [
            ({"ack": 0}, "ack is 0"),
            ({"max_attempts": 0}, "max_attempts is 0"),
            ({"max_attempts": True}, "max_attempts is True"),
            ({"handler_timeout": 0}, "handler_timeout is 0"),
            ({"owner": "Organization"}, "owner is 'Organization'"),
        ],
    )
    def test_a_policy_out_of_range(self, given: Any, what: str) -> None:
        kind = make_category(A=8001)
        with pytest.raises(ConfigurationError, match=rf"Lane\.ONE: {what}"):
            _scope(kind, ONE=scope_categories(8001, {kind.A}, **given))

    def test_a_refused_scope_class_leaves_nothing_behind(self) -> None:
        kind = make_category(A=8001, B=8002)
        with pytest.raises(ConfigurationError):
            _scope(kind, ONE=scope_categories(8001, {kind.A}))
        assert scopes.find_scope(8001) is None


class TestPolicy:
    def test_defaults_are_safe(self) -> None:
        policy = Scope.ORGANIZATION_SCOPE.policy
        assert policy.coalesce
        assert policy.on_failure is OnFailure.BLOCK_SHARD
        assert policy.delivery is Delivery.AT_LEAST_ONCE
        assert (policy.max_attempts, policy.ack, policy.atomic) == (None, 100, False)
        assert policy.shard_key == "organization_id"
        assert policy.owner == "acme.Organization"

    @pytest.mark.parametrize("given", [{"atomic": True}, {"delivery": Delivery.AT_MOST_ONCE}])
    def test_atomic_and_at_most_once_acknowledge_each_message(self, given: Any) -> None:
        kind = make_category(A=8001)
        scope = _scope(kind, ONE=scope_categories(8001, {kind.A}, **given))
        assert scope.ONE.policy.ack == 1

    def test_retired_categories_keep_their_numbers(self) -> None:
        kind = make_category(A=8001, OLD=8002)
        scope = _scope(
            kind,
            ONE=scope_categories(8001, {kind.A}),
            GONE=scope_categories(8002, set(), retired={kind.OLD}),
        )
        assert scopes.is_retired(8002)
        assert not scopes.is_retired(8001)
        assert kind.OLD.get_scope() is scope.GONE
        with pytest.raises(ConfigurationError, match="Duplicate number 8002"):
            OutboxCategory("Other", {"B": 8002}, module=__name__, qualname="Other")

    def test_a_category_class_that_no_scope_names_is_reported(self) -> None:
        kind = make_category(A=8001)
        assert kind in module.categories_without_scope()
        with pytest.raises(InvalidOutboxError, match=r"No scope for category .*Kind\.A"):
            kind.A.get_scope()
        _scope(kind, ONE=scope_categories(8001, {kind.A}))
        assert kind not in module.categories_without_scope()


class TestMessages:
    def test_a_cell_message_has_scope_category_and_identifiers(self) -> None:
        made = Category.TEAM_UPDATE.as_cell_outbox(
            shard_identifier=5, object_identifier=7, payload={"a": 1}
        )
        assert type(made) is CellOutbox
        assert (made.shard_scope, made.shard_identifier, made.category) == (0, 5, 11)
        assert (made.object_identifier, made.payload) == (7, {"a": 1})

    def test_control_messages_are_one_for_each_cell(self) -> None:
        made = Category.USER_UPDATE.as_control_outboxes(
            ["us", "eu", "us"], shard_identifier=5, object_identifier=5
        )
        assert [type(each) for each in made] == [ControlOutbox, ControlOutbox]
        assert [each.cell_name for each in made] == ["eu", "us"]
        assert (
            Category.USER_UPDATE.as_control_outboxes([], shard_identifier=5, object_identifier=5)
            == []
        )

    @pytest.mark.parametrize(
        ("scope", "category", "says"),
        [
            (0, 5, r"Category\.AUDIT_LOG_EVENT does not belong to ORGANIZATION_SCOPE"),
            (0, 7777, r"Unknown category 7777 in ORGANIZATION_SCOPE"),
            (7777, 5, r"Category\.AUDIT_LOG_EVENT does not belong to scope 7777"),
        ],
    )
    def test_a_pair_that_does_not_fit_is_refused(
        self, scope: int, category: int, says: str
    ) -> None:
        with pytest.raises(InvalidOutboxError, match=says):
            module.validated_scope(scope, category)

    def test_a_retired_category_is_not_written(self) -> None:
        kind = make_category(A=8001)
        _scope(kind, ONE=scope_categories(8001, set(), retired={kind.A}))
        with pytest.raises(InvalidOutboxError, match=r"Retired category A of Lane\.ONE"):
            module.validated_scope(8001, 8001)
