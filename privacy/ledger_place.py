"""Where the ledger of private data is: the data lead to it, whatever the working folder and whatever they are called.

A folder of a user's own data holds a file `.ledger.jsonl`, which names the file of their ledger; where it cannot be
written, a folder of the user knows the ledger by the data's path. Public benchmarks have theirs in the working folder,
so that a demonstration can be repeated, and weights from elsewhere beside their file. Where two ledgers are found, or
the one that is named is not there, nothing is released: the total is not known.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.identity import Training, UnnamedTraining
from privacy.journal import LedgerError
from privacy.ledger import Ledger, fingerprint_of

LEDGERS = "TRANSCRIPTION_LEDGERS"
"""Environment variable that names the folder of all ledgers."""

_OF_USER = (
    "THIS USER'S LEDGER: the folder {folder} cannot be written, so that only this user's own folder leads to the "
    "ledger of its data: it holds no use of them by other users, on other machines or under another path"
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
    "A CONTAINER'S LEDGER: {path} lies in the file system of a container and is lost with it, with all that it counts "
    f"({LEDGERS} names a folder for the ledgers of data that have none yet)"
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
        path: The file if none is found; None keeps the ledger in memory.
        signs: Files that are the ledger, or are made to lead to it.
        found: Other files that may be the ledger, or lead to it.
        own: Whether the data are the user's own, so that their ledger is to outlive a container.
        notes: What a guarantee has to say about the place.
    """

    path: Path | None
    signs: tuple[Path, ...] = ()
    found: tuple[Path, ...] = ()
    own: bool = False
    notes: tuple[str, ...] = ()

    def open(
        self,
        *,
        private_data: str,
        run: str,
        block: int = 100,
        chosen: str | Path | None = None,
        training: Training | UnnamedTraining | None = None,
    ) -> Ledger:
        """Opens the ledger, to which all `signs` then lead; arguments are those of `file` and of `Ledger`.

        Raises:
            LedgerError: A file cannot be read or written, or is about other data; or as for `file`.
        """
        path, renamed = self.file(chosen=chosen, training=training)
        ledger = Ledger(path=path, private_data=private_data, run=run, block=block, renamed=renamed)
        # Where only a setting leads to it, the next run without it comes to the place of a new one.
        for sign in self.signs or ([] if self.path is None else [self.path]):
            if ledger_at(sign) is None:
                _lead(sign, ledger)
        self.file(chosen=ledger.path)  # of a part of the data, another run may have begun one at the same time
        lost = self.own and ledger.path is not None and _in_container(ledger.path)
        ledger.notes = self.notes + ((_OF_CONTAINER.format(path=ledger.path),) if lost else ())
        return ledger

    def file(
        self, *, chosen: str | Path | None = None, training: Training | UnnamedTraining | None = None
    ) -> tuple[Path | None, bool]:
        """The ledger's file, and whether data or teacher lead to it, so that it may be about data of another name.

        Args:
            chosen: The file, if the user names one.
            training: The teacher's training, whose ledger may be known by another name.

        Raises:
            LedgerError: There are several ledgers, or one that is named is not there.
        """
        own = None if self.path is None else ledger_at(self.path)
        given = None if chosen is None else ledger_at(Path(chosen)) or Path(chosen).resolve()
        led = {ledger for file in (*self.signs, *self.found) if (ledger := ledger_at(file)) is not None}
        if training is not None and (path := given or self.path) is not None:
            led |= ledgers_of(training, path)
        found = {ledger for ledger in (*led, own, given) if ledger is not None}
        if not found:
            return self.path, False
        if len(found) > 1:
            raise LedgerError(
                f"the privacy ledgers {' and '.join(map(str, sorted(found)))} are of the same private data or teacher, "
                "and none counts what another one holds: their total is not known, and nothing may be released. Leave "
                "`ledger` out if you gave one; take one away only if nothing that its runs made is ever published"
            )
        return (file := found.pop()), file in led


def ledger_at(file: Path) -> Path | None:
    """The ledger that a file is, or leads to; None if there is none.

    Raises:
        LedgerError: It is something else, or leads to a ledger that is not there.
    """
    if not os.path.lexists(file) or (os.path.isfile(file) and not os.path.getsize(file)):
        return None
    if (header := header_of(file)) is None:
        raise LedgerError(
            f"{file} must be a privacy ledger or lead to one, and can not be read as such: restore it, bring back what "
            "it leads to, or ask whoever owns it for permission"
        )
    ledger = _led_from(file, header)
    if (header_of(ledger) or {}).get("ledger") != header["ledger"]:
        raise LedgerError(
            f"the privacy ledger {ledger}, to which {file} leads, is not there, or you may not read it, and what was "
            f"spent is not known: bring it back, or set the path in {file} to where it is now, but never to a copy of "
            "a ledger that others go on using. If it is gone for good, or the data are copied from somebody whose "
            f"ledger you cannot share, remove {file}, and a new one begins. It does not count what was spent: publish "
            "either what comes from these data after it, or what came before, never both"
        )
    return ledger


def _led_from(file: Path, header: dict[str, Any]) -> Path:
    """The ledger that a file with this first line is, or leads to."""
    return (file if "key" in header else file.parent / str(header["path"])).resolve()


def header_of(file: Path) -> dict[str, Any] | None:
    """First line of a ledger, or of a file that leads to one; None if the file cannot be read, or is neither."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.readline())
        return header if "ledger" in header and ("key" in header or "path" in header) else None
    except (OSError, ValueError, TypeError):
        return None


def _lead(sign: Path, ledger: Ledger) -> None:
    """Makes a file lead to a ledger.

    Raises:
        LedgerError: It cannot be written, or another process has just made it lead to another one.
    """
    try:
        sign.parent.mkdir(parents=True, exist_ok=True)
        with sign.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_size:
                file.write(json.dumps({"ledger": ledger.version[0], "path": str(ledger.path)}) + "\n")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        raise LedgerError(
            f"{sign}, by which the next run is to find the privacy ledger {ledger.path}, cannot be written ({error}): "
            f"nothing may be released. Set XDG_STATE_HOME (if it is in the user's folder) or {LEDGERS} to one that can"
        ) from error
    if ledger_at(sign) != ledger.path:
        raise LedgerError(f"another process has begun another ledger of these data, to which {sign} leads: try again")


def place_of(
    private_data: str, *, home: DataHome | None = None, beside: Path | None = None, recorded: Path | None = None
) -> LedgerPlace:
    """Place of the one ledger of a private data set.

    It is where the data, the teacher's file or its training lead. A new one begins, in this order: in the folder that
    `TRANSCRIPTION_LEDGERS` names; in the file that the teacher's training recorded, if the folder it was trained in
    exists; in a folder of the user's for data of their own; beside the teacher's file; in `ledgers/` of the working
    folder.

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
        marks[real.with_name(f"{name}.ledger.jsonl")] = DataHome(part=name).known_by(real)
    for mark, known in marks.items():
        writable = os.access(mark if os.path.isfile(mark) else mark.parent, os.W_OK)
        signs.append(mark if writable else known)
        found += [mark, known]  # who could write it may have changed
        notes += [] if writable else [_OF_USER.format(folder=mark.parent)]
    if os.environ.get(LEDGERS):
        path = by_name() / (f"{name}.jsonl" if home is None else home.file.name)
        found.append(path)
    elif recorded is not None:
        path = recorded
    elif home is not None:
        path = home.file
    else:
        path = signs[0] if signs else by_name() / f"{name}.jsonl"
    own = home is not None or beside is not None
    return LedgerPlace(path.resolve(), tuple(signs), tuple(found), own, tuple(dict.fromkeys(notes)))


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


def ledgers_of(training: Training | UnnamedTraining, ledger: Path) -> set[Path]:
    """Ledgers that know a training, by identity or weights (`privacy.ledger.identify`).

    They are searched beside a `ledger`, beside the teacher's file (and in the user's folder) or where its training
    wrote, where ledgers are known by name, and where files there lead. Files that are not ledgers are skipped.

    Raises:
        LedgerError: A file beside the teacher's leads to a ledger that cannot be read, which may know it.
    """
    if isinstance(training, UnnamedTraining):
        beside = [training.folder.resolve(), user_folder()] if training.folder else []
    else:
        beside = [training.ledger.parent.resolve()] if training.ledger else []
    for folder in beside:
        for mark in folder.glob("*.ledger.jsonl"):
            ledger_at(mark)
    folders = {ledger.parent, by_name(), *beside}
    known = set()
    files = {path: header for folder in folders for path in folder.glob("*.jsonl") if (header := header_of(path))}
    for path in {_led_from(*file) for file in files.items()}:
        if "key" in (header := header_of(path) or {}):
            identity = training.id if isinstance(training, Training) else fingerprint_of(header["key"], training.digest)
            if f'"{identity}"'.encode() in path.read_bytes():
                known.add(path)
    return known


def _in_container(path: Path) -> bool:
    """Whether a file is, or would be, in the file system that a container loses when it ends."""
    if not any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return False
    there = next(folder for folder in path.resolve().parents if folder.exists())
    return there.stat().st_dev == Path("/").stat().st_dev


def _plain(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name).strip("-.") or "private-data"
