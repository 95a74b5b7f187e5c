"""Models of shapes that acme has no use for: inheritance, odd keys, paths to the shard, foreign parents.

Their tables are made by the `zoo` fixture. They are in a registry of their own,
so that the installed apps know nothing of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, Self

from django.apps.registry import Apps
from django.db import models

from hybridcloud.outbox import (
    CellOutboxProducingManager,
    OutboxCategory,
    OutboxScope,
    ReplicatedCellModel,
    ReplicatedControlModel,
    scope_categories,
)
from hybridcloud.outbox.category import connected_models
from silos import cell_silo_model, control_silo_model


class Beast(OutboxCategory):
    PEN = 9100
    ANIMAL = 9101
    LABEL = 9102
    TICKET = 9103
    KEEPER = 9104
    VISIT = 9105


class Zoo(OutboxScope, categories=Beast):
    PEN = scope_categories(
        9100,
        {Beast.PEN, Beast.ANIMAL, Beast.LABEL, Beast.VISIT},
        shard_key="pen_id",
        owner="zoo.Pen",
    )
    TICKET = scope_categories(9101, {Beast.TICKET}, shard_key="nobody")
    KEEPER = scope_categories(9102, {Beast.KEEPER}, shard_key="organization_id")


class _ZooApps(Apps):
    """An app registry whose models belong to no installed app."""

    @cache  # noqa: B019 - Django empties it, and there is one registry
    def get_models(self, *_: Any, **__: Any) -> Any:
        return list(self.all_models["zoo"].values())


zoo_apps = _ZooApps(())


class Handled:
    """Handlers that do nothing: nothing of the zoo is ever drained."""

    def handle_async_replication(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


# These come after the registry may be frozen, and are no part of the application.
with connected_models.opened():

    @cell_silo_model
    class House(models.Model):
        """A foreign parent: it produces nothing."""

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Pen(Handled, ReplicatedCellModel):
        category = Beast.PEN
        name = models.CharField(max_length=20, default="")

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Animal(Handled, ReplicatedCellModel):
        """A root of multi-table inheritance."""

        category = Beast.ANIMAL
        pen = models.ForeignKey(Pen, models.CASCADE, related_name="animals")
        house = models.ForeignKey(House, models.CASCADE, null=True)
        name = models.CharField(max_length=20, default="")

        objects: ClassVar[CellOutboxProducingManager[Self]] = CellOutboxProducingManager()

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    class Bird(Animal):
        wings = models.IntegerField(default=2)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    class TameAnimal(Animal):
        class Meta:
            proxy = True
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Label(Handled, ReplicatedCellModel):
        """Its shard is at the end of a path, and its parents come and go."""

        category = Beast.LABEL
        shard_key = "animal.pen_id"
        animal = models.ForeignKey(Animal, models.CASCADE)
        spare = models.ForeignKey(
            Pen, models.SET_DEFAULT, null=True, default=None, related_name="+"
        )
        text = models.CharField(max_length=20, default="")

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Visit(Handled, ReplicatedCellModel):
        """Its shard may be missing."""

        category = Beast.VISIT
        pen = models.ForeignKey(Pen, models.SET_NULL, null=True)
        count = models.IntegerField(default=0)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Ticket(Handled, ReplicatedCellModel):
        """It names an attribute that it has not."""

        category = Beast.TICKET

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @control_silo_model
    class Keeper(Handled, ReplicatedControlModel):
        """It goes to the cell of its organization, by default."""

        category = Beast.KEEPER
        organization_id = models.BigIntegerField(null=True)
        user_id = models.BigIntegerField(null=True)
        name = models.CharField(max_length=20, default="")
        changed = models.DateTimeField(auto_now=True)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps


CELL_MODELS = (House, Pen, Animal, Bird, Label, Visit, Ticket)
CONTROL_MODELS = (Keeper,)
