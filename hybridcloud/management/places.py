"""The option --silo of commands, and the silos that it selects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcloud.backfill.upgrade import silos_here
from silos import SiloMode
from silos.mode import CurrentSilo

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


def add_silo_argument(parser: CommandParser) -> None:
    """Add --silo to a command, for processes that are several silos."""
    parser.add_argument(
        "--silo", help="control or a cell's name; default: every silo of this process"
    )


def chosen_silos(silo: str | None) -> list[CurrentSilo]:
    """Return the named silo, or every silo of this process."""
    if silo is None:
        return silos_here()
    if silo.lower() == "control":
        return [CurrentSilo(SiloMode.CONTROL)]
    return [CurrentSilo(SiloMode.CELL, silo)]
