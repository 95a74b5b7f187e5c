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
from hybridcloud.outbox.declare.category import connected_models
from silos import cell_silo_model, control_silo_model


class Beast(OutboxCategory):
    PEN = 9100
    ANIMAL = 9101
    LABEL = 9102
    TICKET = 9103
    KEEPER = 9104
    VISIT = 9105
    NEST = 9106
    HERD = 9107
    TAG = 9108
    CAGE = 9109


class Zoo(OutboxScope, categories=Beast):
    PEN = scope_categories(
        9100,
        {*Beast} - {Beast.TICKET, Beast.KEEPER},
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


def move_all(model: type[models.Model], using: str) -> None:
    """Change all rows as code from elsewhere does, which knows of no messages."""
    models.QuerySet(model, using=using).update(place=models.F("place") + 1)


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

    @cell_silo_model
    class Nest(Handled, ReplicatedCellModel):
        """Its key is another new row's."""

        category = Beast.NEST
        id = models.BigIntegerField(primary_key=True, default=lambda: House.objects.create().pk)
        pen_id = models.BigIntegerField(default=1)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    class Counting(models.Model):
        """A base from elsewhere, whose save changes other rows of the table first."""

        place = models.IntegerField(default=0)

        class Meta:
            abstract = True

        def save(self, *args: Any, **kwargs: Any) -> None:
            move_all(type(self), kwargs["using"])
            super().save(*args, **kwargs)

    @cell_silo_model
    class Herd(Handled, ReplicatedCellModel, Counting):
        """It moves its neighbours when it is saved."""

        category = Beast.HERD
        pen_id = models.BigIntegerField(default=1)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    class FirstField(models.IntegerField):
        """A field that changes other rows of the table when it is saved."""

        def pre_save(self, model_instance: models.Model, add: bool) -> int:  # noqa: FBT001 - Django's
            move_all(type(model_instance), "cell_us")
            return 0

    @cell_silo_model
    class Tag(Handled, ReplicatedCellModel):
        """It has such a field."""

        category = Beast.TAG
        pen_id = models.BigIntegerField(default=1)
        place = FirstField(default=0)

        class Meta:
            app_label = "zoo"
            apps = zoo_apps

    @cell_silo_model
    class Cage(Handled, ReplicatedCellModel):
        """The database computes one of its columns."""

        category = Beast.CAGE
        pen_id = models.BigIntegerField(default=1)
        width = models.IntegerField(default=1)
        area = models.GeneratedField(
            expression=models.F("width") * models.F("width"),
            output_field=models.IntegerField(),
            db_persist=True,
        )

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


CELL_MODELS = (House, Pen, Animal, Bird, Label, Visit, Ticket, Nest, Herd, Tag, Cage)
CONTROL_MODELS = (Keeper,)
