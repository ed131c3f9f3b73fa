"""Where the ledger of private data is: the data lead to it, whatever the working folder and whatever they are called.

A folder of a user's own data holds a file `.ledger.jsonl`, which leads to their ledger; where it cannot be written, a
folder of the user knows the ledger by the data's path. Public benchmarks have theirs in the working folder, so that a
demonstration can be repeated, and weights from elsewhere beside their file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from privacy.identity import Training, UnnamedTraining
from privacy.journal import LedgerError
from privacy.ledger import Ledger, fingerprint_of
from privacy.ledger_state import header_of

LEDGERS = "TRANSCRIPTION_LEDGERS"
"""Environment variable that names the folder of all ledgers."""

_OF_USER = (
    "THIS USER'S LEDGER: the folder {folder} cannot be written, so that only this user's own folder leads to the "
    "ledger of its data: it holds no use of them by other users or on other machines"
)
_OF_NAME = (
    "THIS USER'S LEDGER: only the name {name} and this user's own folder lead to the ledger of these data: it holds no "
    "use of them under another name, by other users or on other machines"
)
_OF_PART = (
    "A PART'S LEDGER: it is of {part} alone, and holds no use of the same records as part of the whole or of another "
    "division"
)
_OF_CONTAINER = (
    "A CONTAINER'S LEDGER: {path} lies in the file system of a container and is lost with it, with all that it counts. "
    f"Set {LEDGERS} to a folder outside of it"
)

_benchmarks = Path("ledgers")


@contextmanager
def benchmark_ledgers(folder: Path) -> Iterator[None]:
    """Puts new ledgers of public benchmarks into this folder within the block."""
    global _benchmarks
    before, _benchmarks = _benchmarks, folder
    try:
        yield
    finally:
        _benchmarks = before


@dataclass(frozen=True)
class DataHome:
    """What leads from a user's own data to their ledger.

    Attributes:
        folders: The data set's folder first, then every other that holds private files, links followed; may be empty.
        name: Name of the data, if it is the user's; equal names then are equal data.
        part: A part of the data with a ledger of its own, such as a client's records; empty for all of them.
    """

    folders: tuple[Path, ...] = ()
    name: str = ""
    part: str = ""

    @property
    def file(self) -> Path:
        """Ledger in the user's folder."""
        return user_folder() / f"{_plain(self.name)}.jsonl" if self.name else self.known_by(self.folders[0])

    def known_by(self, folder: Path) -> Path:
        """Ledger in the user's folder for data in `folder`."""
        real = folder.resolve()
        digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        return user_folder() / f"{_plain('-'.join((real.name, digest, self.part)))}.jsonl"

    def beside(self, folder: Path) -> Path:
        """File in a folder of the data that leads to their ledger."""
        return folder / (f".ledger-{_plain(self.part)}.jsonl" if self.part else ".ledger.jsonl")

    def marked(self) -> list[Path]:
        """Folders in which a file is to lead to the ledger: the first, and others that do not lie in it."""
        real = [folder.resolve() for folder in self.folders]
        return [folder for folder in real if folder == real[0] or real[0] not in folder.parents]

    def searched(self) -> list[Path]:
        """Files that lead to the ledger of any data set which has some of the same files.

        Its folder may contain this one's, lie within it, or hold links to the same files.
        """
        folders = dict.fromkeys(one for each in self.folders for one in (each.resolve(), *each.resolve().parents))
        return [file for folder in folders for file in (self.beside(folder), self.known_by(folder))]


@dataclass(frozen=True)
class LedgerPlace:
    """Where the ledger of private data is, or will be.

    Attributes:
        path: The file; None keeps it in memory.
        signs: Files that are made to lead to it.
        found: Other files that may hold a ledger of the same data, and are then made to lead to it.
        renamed: Whether it was found by the data or the teacher, so that it may be about data of another name.
        own: Whether the data are the user's own, so that their ledger is to outlive a container.
        notes: What a guarantee has to say about the place.
    """

    path: Path | None
    signs: tuple[Path, ...] = ()
    found: tuple[Path, ...] = ()
    renamed: bool = False
    own: bool = False
    notes: tuple[str, ...] = ()

    def open(self, *, private_data: str, run: str, block: int = 100, chosen: str | Path | None = None) -> Ledger:
        """Opens the ledger, or a `chosen` file in its place; all others of the same data then lead to it.

        One that cannot be written is counted, and cannot lead to it.

        Raises:
            LedgerError: A file cannot be read or written, or is about other data.
        """
        renamed = self.renamed and chosen is None
        path = self.path if chosen is None else Path(chosen)
        ledger = Ledger(path=path, private_data=private_data, run=run, block=block, renamed=renamed)
        notes = list(self.notes)
        for file in self.others():
            Ledger(path=file, private_data=ledger.private_data, run=run, renamed=True).lead_to(ledger)
            notes += [] if os.access(file, os.W_OK) else [_OF_USER.format(folder=file.parent)]
        if self.own and ledger.path is not None and _in_container(ledger.path):
            notes.append(_OF_CONTAINER.format(path=ledger.path))
        ledger.notes = tuple(dict.fromkeys(notes))
        return ledger

    def others(self) -> list[Path]:
        """All files that lead, or are to lead, to the ledger."""
        there = [file for file in (self.path, *self.found) if file is not None and os.path.isfile(file)]
        return list(dict.fromkeys(file.resolve() for file in (*self.signs, *there)))


def place_of(
    private_data: str, *, home: DataHome | None = None, beside: Path | None = None, recorded: Path | None = None
) -> LedgerPlace:
    """Place of the one ledger of a private data set.

    In this order: the folder that `TRANSCRIPTION_LEDGERS` names; where the data lead; the file that the teacher's
    training recorded, if the folder it was trained in exists; beside the teacher's file; a folder of the user's for
    data of their own; `ledgers/` in the working folder. Ledgers found in several of these become one.

    Args:
        private_data: Public name of the data.
        home: What leads from the data to their ledger; None for public benchmarks.
        beside: The teacher's file, if there is one.
        recorded: The path in the teacher's file, if it names one.
    """
    name = _plain(private_data)
    marks: dict[Path, Path] = {}  # files beside the data, and those in the user's folder that take their place
    signs: list[Path] = []
    found: list[Path] = []
    notes: list[str] = []
    if home is not None:
        found = home.searched()
        marks = {home.beside(folder): home.known_by(folder) for folder in home.marked()}
        notes += [_OF_NAME.format(name=home.name)] if home.name else []
        notes += [_OF_PART.format(part=home.part)] if home.part else []
        signs += [home.file] if home.name else []
    if recorded is not None and not os.path.isdir(recorded.parent.parent):  # nor if it is another user's
        recorded = None
    if recorded is not None:
        found.append(recorded)
    elif beside is not None:
        real = beside.resolve()
        marks[real.with_name(f"{name}.ledger.jsonl")] = DataHome((real,), part=name).known_by(real)
    for mark, known in marks.items():
        writable = os.access(mark if os.path.isfile(mark) else mark.parent, os.W_OK)
        signs.append(mark if writable else known)
        found += [] if writable else [mark]
        notes += [] if writable else [_OF_USER.format(folder=mark.parent)]
    led = next((file for file in (*signs, *found) if os.path.isfile(file)), recorded)
    if os.environ.get(LEDGERS):
        path = by_name() / (f"{name}.jsonl" if home is None else home.file.name)
    elif led is not None:
        path = led
    elif home is not None:
        path = home.file
    else:
        path = signs[0] if signs else by_name() / f"{name}.jsonl"
    own, renamed = home is not None or beside is not None, home is not None or path == led
    return LedgerPlace(path.resolve(), tuple(signs), tuple(found), renamed, own, tuple(notes))


def by_name() -> Path:
    """Folder of ledgers that are known by the name of their data."""
    return Path(os.environ.get(LEDGERS) or _benchmarks).resolve()


def user_folder() -> Path:
    """The user's folder of ledgers, see the XDG Base Directory Specification, which ignores a relative one.

    Raises:
        LedgerError: The user has no home folder.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    if not os.path.isabs(state):
        raise LedgerError(
            "this user has no home folder, and the ledger of private data must outlive this run: set XDG_STATE_HOME to "
            "an absolute path"
        )
    return Path(state, "private-model-transcription")


def ledgers_of(training: Training | UnnamedTraining, ledger: Path) -> dict[Path, str]:
    """Ledgers that know a training, by identity or weights (`privacy.ledger.identify`), with their data's name.

    They are searched beside a `ledger`, beside the teacher's file or where its training wrote, and where ledgers are
    known by name. Files that are not ledgers are skipped.
    """
    beside = training.folder if isinstance(training, UnnamedTraining) else training.ledger and training.ledger.parent
    folders = {ledger.parent, by_name(), *([beside.resolve()] if beside else [])}
    data_names = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.jsonl")):
        if (header := header_of(path)) is not None:
            identity = training.id if isinstance(training, Training) else fingerprint_of(header["key"], training.digest)
            if f'"{identity}"'.encode() in path.read_bytes():
                data_names[path.resolve()] = str(header["private_data"])
    return data_names


def _in_container(path: Path) -> bool:
    """Whether a file is, or would be, in the file system that a container loses when it ends."""
    if not any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return False
    there = next(folder for folder in path.resolve().parents if folder.exists())
    return there.stat().st_dev == Path("/").stat().st_dev


def _plain(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "private-data"
