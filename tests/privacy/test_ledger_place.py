"""The data lead to their ledger, whatever the working folder, the name, the user and the container."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.data_files import write_folders

from datamodules import MNIST, ClientRecords, Digits, ImageFolder
from datamodules.shadowed import Shadowed
from privacy import ledger_place
from privacy.events import Gaussian
from privacy.identity import Training, UnnamedTraining
from privacy.journal import LedgerError
from privacy.ledger import Ledger, identify
from privacy.ledger_place import DataHome, LedgerPlace, benchmark_ledgers, place_of, user_folder
from privacy.mechanisms import NoisyLabels, Shape
from privacy.plan import Charge
from privacy.session import PrivacySession
from privacy.statement import about_place

ANSWER = Charge(release=Gaussian(mu=0.1))


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of pictures; no variable names a folder of ledgers, and no container loses them."""
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    monkeypatch.setattr(ledger_place, "_in_container", lambda path: False)
    monkeypatch.chdir(tmp_path)
    for part in ("train", "test"):
        write_folders(tmp_path / "pictures" / part, count=2)
    return tmp_path / "pictures"


def data(root: Path, **settings: Any) -> ImageFolder:
    return ImageFolder(root=root, size=8, channels=1, **settings)


def used(place: LedgerPlace, *, name: str = "pictures/train", chosen: str | None = None) -> Ledger:
    """One run of one answer."""
    ledger = place.open(private_data=name, run=os.urandom(8).hex(), block=1, chosen=chosen)
    ledger.charge(ANSWER)
    return ledger


def total(place: LedgerPlace) -> int:
    """Answers of all runs before, as a further run counts them."""
    return place.open(private_data="pictures/train", run="reader").counts()[ANSWER]


def elsewhere(folder: Path) -> Path:
    folder.mkdir()
    os.chdir(folder)
    return folder


def _by_folder(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    elsewhere(pictures.parent / "elsewhere")
    return place_of("pictures/train", home=data(pictures).home)


def _by_name(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    return place_of("other/train", home=data(pictures, name="other").home)


def _by_variable(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    patch.setenv("TRANSCRIPTION_LEDGERS", str(pictures.parent / "ledgers of all"))
    return place_of("pictures/train", home=data(pictures).home)


def _by_copy(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    return place_of("copy/train", home=data(shutil.copytree(pictures, pictures.parent / "copy")).home)


def _by_link(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    (pictures.parent / "link").symlink_to(pictures)
    return place_of("link/train", home=data(pictures.parent / "link").home)


def _by_links(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    """A folder of its own, all of whose private pictures are links."""
    for file in sorted((pictures / "train").rglob("*.png")):
        link = pictures.parent / "links" / file.relative_to(pictures)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    return place_of("links/train", home=data(pictures.parent / "links").home)


def _from_within(pictures: Path, patch: pytest.MonkeyPatch) -> LedgerPlace:
    return place_of("train/train", home=data(pictures / "train", test_fraction=0.5).home)


WAYS: list[Callable[[Path, pytest.MonkeyPatch], LedgerPlace]] = [
    _by_folder, _by_name, _by_variable, _by_copy, _by_link, _by_links, _from_within,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("turned", [False, True])
def test_the_same_pictures_are_one_budget(
    way: Callable[..., LedgerPlace], turned: bool, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each way to the pictures finds what was spent by the first, and the first what was spent by that way."""
    first = place_of("pictures/train", home=data(pictures).home)
    if turned and way is not _by_copy:
        with monkeypatch.context() as patch:
            used(way(pictures, patch))
        os.chdir(pictures.parent)
        found = used(place_of("pictures/train", home=data(pictures).home))
    else:
        used(first)
        found = used(way(pictures, monkeypatch))
    assert found.counts()[ANSWER] == 2
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS", raising=False)
    os.chdir(pictures.parent)
    assert total(place_of("pictures/train", home=data(pictures).home)) == 2, "and so does the next run"


def test_a_second_ledger_of_the_same_data_is_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is given, one that was begun beside weights from elsewhere, and a copy that knows the teacher."""
    weights = pictures.parent / "weights.pt"
    weights.touch()
    of_weights, of_data = place_of("faces", beside=weights), place_of("p", home=data(pictures).home)
    used(of_weights, name="faces")
    with monkeypatch.context() as patch:
        patch.setenv("TRANSCRIPTION_LEDGERS", str(pictures.parent / "ledgers of all"))
        assert used(place_of("faces", beside=weights), name="faces").counts()[ANSWER] == 2
    training = Training("ab" * 16)
    first = used(of_data)
    with pytest.raises(LedgerError, match="another process has begun another ledger of these data"):
        ledger_place._lead(of_data.signs[0], Ledger(path="mine.jsonl", private_data="p", run="run"))
    Path("mine.jsonl").unlink()
    first.register(training)
    copied = Path(shutil.copy(first.path or "", user_folder() / "copied.jsonl"))
    both = place_of("faces", home=data(pictures).home, beside=weights)
    for refused in (
        lambda: used(of_data, chosen="mine.jsonl"),
        lambda: used(both),
        lambda: LedgerPlace(copied).open(private_data="pictures/train", run="run", training=training),
    ):
        before = len(list(pictures.parent.rglob("*.jsonl")))
        with pytest.raises(LedgerError, match=r"are of the same private data or teacher.*total is not known"):
            refused()
        assert len(list(pictures.parent.rglob("*.jsonl"))) == before
    (weights.parent / "faces.ledger.jsonl").unlink()
    assert used(both).counts()[ANSWER] == total(place_of("faces", beside=weights)) == 2, "one leads to the other"


def test_ledgers_that_two_runs_begin_at_once_are_refused(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pictures and a part of them, and of the same weights under two names, which share nothing else."""
    (weights := pictures.parent / "weights.pt").touch()

    def of_weights(name: str) -> None:
        training = UnnamedTraining(b"their digest", folder=weights.parent)
        session = PrivacySession(NoisyLabels(), Shape(4, 10, "DPSD"))
        session.open(private_data=name, ledger=place_of(name, beside=weights), training=training)

    def of_pictures(root: Path, **settings: float) -> None:
        used(place_of("pictures/train", home=data(root, **settings).home))

    for first, second in (
        (lambda: of_pictures(pictures), lambda: of_pictures(pictures / "train", test_fraction=0.5)),
        (lambda: of_weights("faces"), lambda: of_weights("people")),
    ):

        def begun(second: Callable[[], None] = second, **given: Any) -> Ledger:
            """That of the first run, which has found none, while the second begins another."""
            monkeypatch.setattr(ledger_place, "Ledger", Ledger)
            second()
            return Ledger(**given)

        monkeypatch.setattr(ledger_place, "Ledger", begun)
        with pytest.raises(LedgerError, match=r"are of the same private data or teacher.*total is not known"):
            first()


def test_weights_have_no_new_ledger_under_another_name_while_that_beside_them_is_away(pictures: Path) -> None:
    (weights := pictures.parent / "weights.pt").touch()
    place, training = place_of("people", beside=weights), UnnamedTraining(b"their digest", folder=weights.parent)
    there = used(place_of("faces", beside=weights), name="faces", chosen="disk/faces.jsonl").path
    assert there is not None and place.file(training=training)[0] == weights.with_name("people.ledger.jsonl")
    there.rename("unmounted")
    with pytest.raises(LedgerError, match=r"faces\.jsonl, to which .*/faces\.ledger\.jsonl leads, is not there"):
        place.file(training=training)


def test_weights_whose_folder_could_not_be_written_before_keep_their_ledger(pictures: Path) -> None:
    weights = pictures.parent / "weights.pt"
    weights.touch()
    there = used(LedgerPlace(DataHome(part="faces").known_by(weights)), name="faces")
    training = UnnamedTraining(b"their digest", folder=weights.parent)
    identify(there, training.digest)
    assert place_of("people", beside=weights).file(training=training) == (there.path, True), "under any name"
    assert used(place_of("faces", beside=weights), name="faces").counts()[ANSWER] == 2
    assert (pictures.parent / "faces.ledger.jsonl").is_file(), "which leads to it from now on"


def test_public_benchmarks_have_ledgers_of_the_working_folder(tmp_path: Path) -> None:
    for dataset in (Digits(), MNIST()):
        assert dataset.home is None
    used(place_of("Digits/train"), name="Digits/train")
    assert (tmp_path / "ledgers" / "Digits-train.jsonl").is_file() and not user_folder().exists()
    with benchmark_ledgers(tmp_path / "runs" / "demo" / "ledgers"):
        assert used(place_of("Digits/train"), name="Digits/train").counts()[ANSWER] == 1
    elsewhere(tmp_path / "elsewhere")
    assert used(place_of("Digits/train"), name="Digits/train").counts()[ANSWER] == 1


class Own(Digits):
    """A user's own data, by a class of their own."""


def test_data_of_a_user_s_own_class_are_known_by_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(place_of(Own().private_data, home=Own().home), name="Own/train")
    elsewhere(tmp_path / "elsewhere")
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", "others")
    used(place_of(Own().private_data, home=Own().home), name="Own/train")
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the XDG specification says to ignore
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".local").mkdir()
    (tmp_path / "state").rename(tmp_path / ".local" / "state")
    ledger = used(place_of(Own().private_data, home=Own().home), name="Own/train")
    assert ledger.counts()[ANSWER] == 3
    assert ledger.notes[0].startswith("THIS USER'S LEDGER: only the name Own/train")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # a user who has none
    with pytest.raises(LedgerError, match=r"no home folder.*: set XDG_STATE_HOME to an absolute path"):
        place_of(Own().private_data, home=Own().home)


def test_clients_count_apart_and_attacks_count_nowhere(pictures: Path) -> None:
    whole = data(pictures, num_records=10_000)
    clients = [ClientRecords(dataset=whole, client=number, num_clients=2, alpha=10.0) for number in range(2)]
    places = [place_of(client.private_data, home=client.home) for client in clients]
    assert len({sign for place in places for sign in place.signs}) == 2
    for place, client in zip(places, clients, strict=True):
        assert (ledger := used(place, name=client.private_data)).counts()[ANSWER] == 1
        assert ledger.notes[0].startswith(f"A PART'S LEDGER: it is of client-{client.client}-of-2")
    assert total(place_of("pictures/train", home=whole.home)) == 0
    shadow = Shadowed(dataset=whole, number=0)
    assert shadow.home is None and shadow.assumptions[-1].startswith("A SHADOW'S LEDGER: these are records of pictures")


def test_the_ledger_that_a_training_recorded_is_counted_wherever_the_next_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = tmp_path / "ledgers" / "faces.jsonl"
    used(place_of("faces"), name="faces")
    elsewhere(tmp_path / "elsewhere")
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(tmp_path / "of all"))
    assert used(place_of("faces", recorded=recorded), name="faces").counts()[ANSWER] == 2
    assert used(place_of("faces", recorded=recorded), name="faces").counts()[ANSWER] == 3


def _as_nobody(act: Callable[[], None]) -> int | None:
    def run() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        act()

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    return process.exitcode


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that others may enter, unlike pytest's, with pictures and a state that is theirs to write."""
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name)).chmod(0o755)
        write_folders(folder / "pictures" / "train", count=2)
        (folder / "state").mkdir()
        (folder / "state").chmod(0o777)
        yield folder


def test_what_leads_to_a_ledger_of_data_that_cannot_be_written(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in the user's folder, and the page and the console say whom it does not know."""
    pictures, state = shared / "pictures", shared / "state"
    pictures.chmod(0o555)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))

    def act() -> None:
        os.chdir(state)
        place = place_of("pictures/train", home=data(pictures).home)
        (note,) = place.notes
        assert note.startswith(f"THIS USER'S LEDGER: the folder {pictures} cannot be written")
        used(place)
        os.environ["TRANSCRIPTION_LEDGERS"] = str(state / "others")
        used(place_of("pictures/train", home=data(pictures).home))
        del os.environ["TRANSCRIPTION_LEDGERS"]
        assert used(place_of("other/train", home=data(pictures, name="other").home)).counts()[ANSWER] == 3

    def homeless() -> None:
        os.environ["XDG_STATE_HOME"] = str(pictures)
        with pytest.raises(LedgerError, match=r"by which the next run is to find .* Set XDG_STATE_HOME"):
            used(place_of("pictures/train", home=data(pictures).home), chosen=str(state / "given.jsonl"))

    assert _as_nobody(act) == _as_nobody(homeless) == 0
    assert not list(pictures.glob(".ledger*"))
    pictures.chmod(0o755)
    assert place_of("pictures/train", home=data(pictures).home).notes == (), "for who can write it"
    part = place_of("train/train", home=data(pictures / "train", test_fraction=0.5).home)
    assert total(part) == 3, "a part of it"


def test_a_ledger_that_a_container_will_lose_is_said(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("TRANSCRIPTION_LEDGERS")
    marks = [path for path in ("/.dockerenv", "/run/.containerenv") if Path(path).exists()]
    there = pictures.stat().st_dev == Path("/").stat().st_dev
    assert ledger_place._in_container(pictures / "ledger.jsonl") is (bool(marks) and there)
    monkeypatch.setattr(ledger_place, "_in_container", lambda path: path.is_relative_to(user_folder()))
    kept = str(pictures.parent / "volume" / "ledger.jsonl")
    for chosen, lost in ((None, True), (None, True), (kept, False)):
        if chosen is not None:  # a new one
            shutil.rmtree(user_folder())
            (pictures / ".ledger.jsonl").unlink()
        # Not where the file beside the pictures is, but where it leads.
        ledger = place_of("pictures/train", home=data(pictures).home).open(
            private_data="pictures/train", run="run", chosen=chosen
        )
        said = about_place(ledger)
        assert len(said) == lost and all(f"A CONTAINER'S LEDGER: {ledger.path}" in text for text in said)
    monkeypatch.setattr(ledger_place, "_in_container", lambda path: True)
    assert not place_of("Digits/train").open(private_data="Digits/train", run="run").notes, "a benchmark's may be lost"


def test_nothing_is_released_where_the_ledger_is_not_there(pictures: Path) -> None:
    """Such as with another user, in another container, or where another file is in its place."""
    there = used(place_of("pictures/train", home=data(pictures).home)).path
    assert there is not None
    there.rename(away := there.with_name("away.jsonl"))
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"is not there, .* what was spent is not known: bring it back"):
            used(place_of("p", home=data(pictures).home))
        Ledger(path=there, private_data="pictures/train", run="another")
    away.rename(there)
    (pictures / ".ledger.jsonl").write_text("")  # of a process that was killed before it wrote
    assert total(place_of("p", home=data(pictures).home)) == 1
    for broken in (lambda mark: mark.write_text("{}\n"), lambda mark: mark.symlink_to("a disk that is away")):
        (pictures / ".ledger.jsonl").unlink()
        broken(pictures / ".ledger.jsonl")
        with pytest.raises(LedgerError, match="must be a privacy ledger or lead to one"):
            used(place_of("p", home=data(pictures).home))


def test_a_ledger_may_be_moved(pictures: Path) -> None:
    """By a link in its place, by the path in the file that leads to it, and that file may be given for the ledger."""
    used(place_of("p", home=data(pictures).home))
    mark, folder = pictures / ".ledger.jsonl", user_folder().rename(pictures.parent / "disk")
    user_folder().symlink_to(folder)
    assert used(place_of("p", home=data(pictures).home)).counts()[ANSWER] == 2
    user_folder().unlink()
    mark.write_text(mark.read_text().replace(str(user_folder()), "../disk"))
    assert used(place_of("p", home=data(pictures).home), chosen=str(mark)).counts()[ANSWER] == 3
    assert used(LedgerPlace(None), chosen=str(mark)).counts()[ANSWER] == 4


def test_a_ledger_that_one_run_was_given_is_found_by_the_next(pictures: Path) -> None:
    """Nor does one that others lead to take the place of one with charges."""
    used(place_of("Digits/train"), name="Digits/train", chosen="mine.jsonl")
    assert used(place_of("Digits/train"), name="Digits/train").counts()[ANSWER] == 2
    training, given = Training("ab" * 16), LedgerPlace(Path("given.jsonl"))
    used(given)
    used(place_of("other/train"), name="other/train").register(training)
    for again in (
        lambda: used(place_of("other/train"), name="other/train", chosen="mine.jsonl"),
        lambda: given.open(private_data="p", run="run", training=training),
    ):
        with pytest.raises(LedgerError, match="total is not known"):
            again()
