"""A teacher's training run: its identity, its entry in the data's ledger, and what may resume it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer

from datamodules.records import Partition, require_partition
from lightning_modules.private_fit import say_ledger
from lightning_modules.training.run import datamodule_of, processes_of
from privacy.events import Release
from privacy.identity import CheckpointError, Training, new_training_id
from privacy.ledger_place import DataHome, LedgerPlace, place_of
from privacy.processes import SharedLedger, by_all

_NO_DATA = {"private_data": None, "num_records": None, "assumptions": None}


class OwnTraining(SharedLedger):
    """Identity of a module's training, kept by its checkpoints; its ledger has this training as its run.

    Args:
        kind: What is trained, for a reader of the ledger.
    """

    _followed = ("id", "_token", "ledger_was_replaced")

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.id: str | None = None
        self.private_data: str | None = None
        #: The ledger's file, if a setting names one.
        self.chosen: str | None = None
        #: Which records are private in this training, if its data say so.
        self.partition: Partition | None = None
        #: Whether some fit of this training was resumed from a checkpoint.
        self.resumed = False
        #: Training of the checkpoint that is resumed.
        self._previous: Training | None = None
        self._data: dict[str, Any] = {}
        self._home: DataHome | None = None
        self._token: str | None = None
        self._progress: Any = None

    def begin(self, module: LightningModule) -> None:
        """Takes a new identity when a fit begins, or keeps that of the checkpoint.

        Raises:
            CheckpointError: The checkpoint is of other private data.
            PartitionError: Other records of the same data were private.
        """
        self.require_partition(module.trainer)
        self.processes = processes_of(module.trainer)
        by_all(self.processes, lambda: self._take(datamodule_of(module.trainer)))
        if self.id is None:
            self.id = self.processes.broadcast(new_training_id())

    def _take(self, data: Any) -> None:
        now = {name: getattr(data, name, None) for name in _NO_DATA}
        for name, value in self._data.items():
            if None not in (value, now[name]) and value != now[name]:
                raise CheckpointError(f"{name} was {value!r} and is {now[name]!r} now: resume with the same")
        self._data, self._home, self.private_data = now, getattr(data, "home", None), now["private_data"]
        self.partition = getattr(data, "partition", self.partition)

    def require_partition(self, trainer: Trainer) -> None:
        """Refuses data with another partition than the training's: private records would count as public.

        Raises:
            PartitionError: The partition differs.
        """
        if self.partition is not None:
            require_partition([self.partition], datamodule_of(trainer), whose="the checkpoint")

    def register(self, releases: Mapping[Release, int] | None) -> None:
        """Writes the training and all its releases (None: unbounded) into the data's ledger, before its first step.

        Raises:
            LedgerError: The ledger cannot be written, or is not the one that the checkpoint saw.
        """
        with self.on_rank_zero() as first:
            if first:
                self._open()
                assert self.id is not None
                self.ledger.register(Training(self.id, kind=self.kind, releases=releases, partition=self.partition))

    def _open(self) -> None:
        if self._ledger is not None and (self._ledger.path is not None or self.private_data is None):
            return
        if self._ledger is not None:
            self._token = None  # of the ledger in memory that this one replaces
        self._ledger = self.place().open(
            private_data=self.private_data or "data without a name", run=self.id or "", chosen=self.chosen
        )
        same = self._ledger.verify_head(None if self._previous is None else self._previous.head, whose="the checkpoint")
        self.ledger_was_replaced |= not same
        say_ledger(self)

    def branch(self) -> None:
        """Takes a new identity if this state is not the last one saved.

        Two fits resumed from one checkpoint give two teachers, whose steps after it compose. Each branch then has its
        own identity with all steps since the first, and identities compose. In each fit, call this before `register`,
        and `renew_token` before the first step.
        """
        with self.on_rank_zero() as first:
            if first:
                self._open()
                assert self.id is not None
                known = self.id in self.ledger.releases_by_training()
                # A checkpoint whose training this ledger does not know comes from another ledger.
                same = self.ledger.saved(self.id) == self._token if known else self._previous is None
                if not same:
                    self.id, self._token = new_training_id(), None
                self.ledger.run = self.id

    def renew_token(self) -> None:
        """Makes any copy of this object, and any earlier checkpoint, another branch from here on.

        Raises:
            LedgerError: Another fit continued the same checkpoint at the same time, or it could not be recorded.
        """
        with self.on_rank_zero() as first:
            if first:
                self._renew_token()

    def _renew_token(self) -> None:
        assert self.id is not None
        token = new_training_id()
        self.ledger.note_saved(self.id, token, after=self._token)
        self._token = token

    def place(self) -> LedgerPlace:
        """Place of the private data's ledger; in memory if they have no name."""
        if self.private_data is None:
            return LedgerPlace(None)
        recorded = None if self._previous is None else self._previous.ledger
        return place_of(self.private_data, home=self._home, recorded=recorded)

    def save(
        self, checkpoint: dict[str, Any], *, trainer: Trainer | None, releases: Any = None, progress: Any = None
    ) -> None:
        """Adds identity, ledger, and the public name and size of the private data to a checkpoint.

        Args:
            checkpoint: The checkpoint.
            trainer: The trainer, which knows the data.
            releases: See `Training`.
            progress: Progress of a training that may branch: each saved state gets a token. Process 0, whose checkpoint
                is written, does this without the others, since after an error it may save alone.
        """
        ledger = self._ledger
        if not self._data and trainer is not None:  # otherwise the trainer may have tested on other data
            self._take(datamodule_of(trainer))
        checkpoint.update(self._data or _NO_DATA)
        if ledger is not None and progress is not None and progress != self._progress:
            self._progress = progress
            if self.processes.rank == 0:
                self._renew_token()
        checkpoint["training"] = Training(
            self.id or new_training_id(),
            kind=self.kind,
            releases=releases,
            ledger=self.place().path if ledger is None else ledger.path,
            head=None if ledger is None else ledger.head,
            state=self._token,
            ledger_was_replaced=self.ledger_was_replaced,
            partition=self.partition,
        ).to_dict()

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Continues with a checkpoint's identity, or with a new one if its training was of another kind.

        A bound on DP-SGD steps does not cover steps without noise.
        """
        self._data = {name: checkpoint.get(name) for name in _NO_DATA}
        self.private_data = self._data["private_data"]
        self._ledger, self.resumed = None, True
        written = checkpoint.get("training")
        stated = self._previous = None if written is None else Training.from_dict(written)
        self.id = None if stated is None or stated.kind != self.kind else stated.id
        self._token = None if stated is None else stated.state
        self.partition = None if stated is None else stated.partition
        self.ledger_was_replaced = stated is not None and stated.ledger_was_replaced
