"""Every public name of the design is there, and no other; without it a rename would break users unseen."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import hybridcloud

NAMES = {
    "silos": """
        AvailabilityError Cell SiloMode all_silo_model assume_silo cell_silo_function
        cell_silo_model control_silo_function control_silo_model find_cells_for_orgs
        find_cells_for_user get_current_silo
    """,
    "hybridcloud.outbox": """
        CellMapping CellOutbox CellOutboxBase CellOutboxProducingManager CellOutboxProducingModel
        ControlOutbox ControlOutboxBase ControlOutboxProducingManager ControlOutboxProducingModel Delivery
        InvalidOutboxError OnFailure OutboxBase OutboxCategory OutboxDatabaseError OutboxFlushError
        OutboxScope OutboxTransactionError ReplicatedCellModel ReplicatedControlModel RetryLater
        outbox_context process_cell_outbox process_control_outbox scope_categories
    """,
    "hybridcloud.rpc": """
        Batch BatchItem ByCellName ByOrganizationId ByOrganizationIdAttribute CellResolution
        RpcAuthenticationError RpcBodyError RpcError RpcModel RpcNotFoundError RpcRemoteError
        RpcService RpcSetupError RpcTooLargeError RpcUnavailableError RpcValidationError batch
        cell_rpc_method rpc_method
    """,
    "hybridcloud.testutils": """
        OutboxRecursionLimitError all_silo_test assert_outbox assume_test_silo_mode
        assume_test_silo_mode_of cell_silo_test control_silo_test drain_outboxes outbox_context
        outbox_runner override_cells override_options pending_messages refute_outbox run_cascades
    """,
    "hybridcloud.options": "all delete get register set",
    "receivers.outbox": "maybe_process_tombstone",
}
"""The public modules, each with all it offers."""

#: Names that the reference's users look for, where its map of modules sends them.
MORE = {
    "hybridcloud.outbox.tasks": """
        beat_schedule drain_outbox_shards drain_outbox_shards_control enqueue_outbox_jobs
        enqueue_outbox_jobs_control schedule_batch
    """,
    "hybridcloud.backfill": """
        BackfillBatch OUTBOX_BACKFILLS_PER_MINUTE backfill_outboxes_for find_replication_version
        get_processing_state post_upgrade process_outbox_backfill_batch
        run_outbox_replications_for_self_hosted set_processing_state
    """,
    "hybridcloud.tombstones.service": "cell_tombstone_service control_tombstone_service",
    "hybridcloud.rpc.urls": "urlpatterns",
    "hybridcloud.errors": "OutboxRecursionLimitError HybridCloudError",
}

EVERY = [(module, name) for module, names in {**NAMES, **MORE}.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_the_name_can_be_imported(module: str, name: str) -> None:
    assert getattr(import_module(module), name) is not None


@pytest.mark.parametrize("module", NAMES)
def test_the_module_offers_these_names_and_no_other(module: str) -> None:
    assert import_module(module).__all__ == sorted(NAMES[module].split())


@pytest.mark.parametrize("module", NAMES)
def test_public_things_say_what_they_are_for(module: str) -> None:
    home = import_module(module)
    silent = [
        name
        for name in home.__all__
        if callable(getattr(home, name)) and not (getattr(home, name).__doc__ or "").strip()
    ]
    assert silent == []


def test_the_version_is_the_projects() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert hybridcloud.__version__ == tomllib.loads(text)["project"]["version"]


def test_other_names_of_the_package_are_missing_as_usual() -> None:
    assert not hasattr(hybridcloud, "version")
    with pytest.raises(ImportError, match="cannot import name 'outboxes' from 'hybridcloud'"):
        exec("from hybridcloud import outboxes")


def test_producing_models_keep_the_references_methods() -> None:
    outbox = import_module("hybridcloud.outbox")
    for model, names in (
        (outbox.ReplicatedCellModel, ("outbox_for_update", "payload_for_update")),
        (outbox.ReplicatedControlModel, ("outboxes_for_update", "outbox_cell_names")),
    ):
        for name in (*names, "prepare_outboxes", "handle_async_deletion", "replication_version"):
            assert hasattr(model, name), f"{model.__name__}.{name}"
    for name in (
        "drain_shard",
        "should_skip_shard",
        "find_scheduled_shards",
        "prepare_next_from_shard",
        "get_shard_depths_descending",
        "get_total_outbox_count",
    ):
        assert hasattr(outbox.OutboxBase, name), name
