"""One measured figure of a table, with the fits that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from sweeps.runner.digest import digest_of_table_1
from sweeps.runner.fit import Fit
from sweeps.runner.plan import Task

__all__ = ["Cell", "FitSpec"]


@dataclass(frozen=True)
class FitSpec:
    """One fit of one cell, with everything that decides its outcome.

    Attributes:
        table: Name of the spec.
        preset: Name of the preset.
        fit: Name, configuration files and parameters.
        parents: The fits that `{name}` in the parameters stands for.
        labels: Values of the axes, for people and for estimates.
        seconds: The spec's estimate, or None.
    """

    table: str
    preset: str
    fit: Fit
    parents: Mapping[str, FitSpec]
    labels: Mapping[str, str]
    seconds: float | None = None

    @cached_property
    def digest(self) -> str:
        """Of all that decides its outcome: equal fits of any table are one fit."""
        return self.fit.digest({name: parent.digest for name, parent in self.parents.items()})

    @property
    def folder_name(self) -> str:
        """Name of the folder that holds it."""
        return f"{self.fit.name}-{self.digest[:16]}"

    @cached_property
    def former_digest(self) -> str:
        """Version 1 of its digest."""
        parents = {name: parent.former_digest for name, parent in self.parents.items()}
        return digest_of_table_1(self.fit.config, self.fit.set, parents)

    @property
    def former_folder_name(self) -> str:
        """The folder that version 1 of the digest gave it."""
        return f"{self.fit.name}-{self.former_digest[:16]}"

    def task(self) -> Task:
        """What is to be run for it."""
        seed = self.fit.set.get("seed_everything")
        note = {"table": self.table, "preset": self.preset, "fit": self.fit.name, "labels": dict(self.labels)}
        return Task(
            name=self.folder_name,
            fit=self.fit,
            digest=self.digest,
            parents={name: parent.folder_name for name, parent in self.parents.items()},
            label=", ".join(f"{axis} {value}" for axis, value in self.labels.items()),
            seconds=self.seconds,
            needs_record=True,
            note=note if seed is None else {**note, "seed": seed},
        )

    def lineage(self) -> Iterator[FitSpec]:
        """Parents before children, itself last."""
        for parent in self.parents.values():
            yield from parent.lineage()
        yield self


@dataclass(frozen=True)
class Cell:
    """One measured figure of the table.

    Attributes:
        labels: Value of each axis.
        seed: Seed of the measured fit.
        fit: What is measured.
    """

    labels: Mapping[str, str]
    seed: int
    fit: FitSpec

    @property
    def name(self) -> str:
        """File name of its record."""
        # PATE and PATE+ are two methods.
        labels = [value.replace("+", "plus") for value in self.labels.values()]
        words = [re.sub(r"[^A-Za-z0-9.]+", "-", value).strip("-") for value in labels]
        return "_".join([*words, f"seed{self.seed}"])
