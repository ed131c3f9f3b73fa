"""DP-SGD for whole persons through the commands: the unit is said wherever ε is, and no ε of records is added to it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from support.data_files import picture, pixels
from support.dp_teachers import dp_sgd
from support.golden_guarantees import require_golden
from support.runs import configuration, fit, guarantee, result, working_in

from lightning_modules import DPSGDTeacher
from lightning_modules.cli import main
from privacy import BudgetExceeded
from privacy.events.base import Unit
from privacy.exported import AlteredError
from privacy.guarantee import Guarantee
from privacy.identity import CheckpointError

FOLDER = {"class_path": "ImageFolder", "init_args": {"root": "pictures", "person_pattern": r"^(patient\d+)_"}}
MEANS = "one person with all pictures"


def training(unit: str, *, epochs: int = 1, folder: str = "", dataset: Any = FOLDER, **model: Any) -> dict[str, Any]:
    data = {"dataset": dataset, "batch_size": 5, "steps_per_epoch": 2}
    return dp_sgd(folder or unit, epochs, data=data, unit=unit, noise_multiplier=1.0, delta=1e-3, **model)


def student(folder: str, teacher: str, **budget: Any) -> dict[str, Any]:
    mechanism, own = {"class_path": "RawResponses"}, {"delta": 1e-3, **budget}
    given = {"teacher": f"{teacher}/checkpoints/last.ckpt", "mechanism": mechanism, "budget": own, "pool_size": 8}
    config = configuration(folder, class_path="Distillation", steps=1, model=given)
    config["data"]["init_args"]["dataset"] = FOLDER
    return config


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teachers for records and for persons on the same pictures, of patients who have 1 to 5 of them."""
    folder = tmp_path_factory.mktemp("patients")
    with working_in(folder):
        for person in range(38):
            for n, (image, label) in enumerate(zip(*pixels(1 + person % 5, 8, 8, classes=2, seed=person), strict=True)):
                place = Path("pictures", "train" if person < 30 else "test", ("normal", "pneumonia")[label])
                picture(image, place / f"patient{person}_{n}.png")
        for unit in ("record", "person"):
            fit(training(unit))
    return folder


@pytest.fixture(autouse=True)
def within(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("TRANSCRIPTION_LEDGERS", str(place / "ledgers"))


@pytest.mark.parametrize("unit", ["record", "person"])
def test_a_guarantee_is_what_it_was(unit: str) -> None:
    content = json.loads(Path(unit, "public", "guarantee.json").read_text(encoding="utf-8"))
    require_golden(f"DPSGDTeacher_of_{unit}s", Guarantee.from_dict(content))


def test_both_units_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fit", "--config=given.json", "--trainer.fast_dev_run=1"])
    of_records, of_persons = result("record"), result("person")
    assert of_persons["epsilon_person"] == guarantee("person")["epsilon"] and of_persons["epsilon_record"] == "inf"
    assert "epsilon_person" not in of_records and of_persons["unit"] == MEANS
    assert f"The unit is {MEANS}" in of_persons["statement"]
    assert "privacy/epsilon_person" in Path("person/metrics.csv").read_text().splitlines()[0].split(",")
    # One ledger, whose two units no figure adds up.
    assert guarantee("record")["epsilon_all_runs"] < 100 and guarantee("person")["epsilon_all_runs"] == "inf"
    main(["ledger", "show", "pictures/.ledger.jsonl", "--delta", "1e-3"])  # the trial run of one step, too
    shown = capsys.readouterr().out
    assert "infinite" not in of_records["statement"] and of_persons["statement"].endswith("pictures/train: inf.")
    assert shown.count(MEANS) == 3 and f"Total ε in the ledger ({MEANS}): inf" in shown
    assert "Each ε holds for fewer than 1/delta = 1,000 private records" in shown  # of more, pages say infinity


def test_a_student_inherits_the_unit_and_whoever_receives_it_can_check_it(capsys: pytest.CaptureFixture[str]) -> None:
    of_person = fit(student("of-person", "person")).model
    main(["export", "of-person", "--to", "given", "--force"])
    main(["verify", "given"])
    said = capsys.readouterr().out
    assert "Person-level ε = " in said and "person-level ε = " in said and "ecord-level" not in said
    found = guarantee("of-person")
    assert (found["unit"], found["epsilon"]) == (MEANS, guarantee("person")["epsilon"])
    assert any("whose each picture is" in text for text in found["assumptions"])
    card = Path("given/README.md").read_text()
    assert "| person-level ε |" in card and "record-level" not in card
    file = Path("given/guarantee.json")
    file.write_text(file.read_text().replace(MEANS, "one training record"))
    with pytest.raises(AlteredError, match="the unit is one training record, and its releases are about one person"):
        main(["verify", "given"])
    # A student of the other teacher has no ε together with it; by itself it has.
    with pytest.raises(BudgetExceeded, match=r"protects several units.*budget\.scope=run"):
        fit(student("of-record", "record"))
    fit(student("of-record", "record", scope="run"))
    assert guarantee("of-record")["unit"] == "one training record of the teacher"
    said = of_person.guarantee()  # resumed by now it has none, and its own figure for persons is none for a record
    assert said.level == "record" and said.epsilon == said.epsilon_of_run == math.inf
    with pytest.MonkeyPatch.context() as patch:  # the mutant adds them as one
        patch.setattr("privacy.accounting.composition.common_neighbours", lambda _: None)
        patch.setattr("privacy.account.shared_neighbours", lambda _: (Unit.PERSON, "any"))
        assert float(fit(student("both", "record")).model.guarantee().epsilon) < 100


def test_what_is_refused_of_persons() -> None:
    with pytest.raises(ValueError, match="unit must be record or person, got 'patient'"):
        DPSGDTeacher(num_classes=2, image_shape=(1, 8, 8), noise_multiplier=1.0, unit="patient")  # type: ignore[arg-type]
    unnamed = {"class_path": "ImageFolder", "init_args": {"root": "pictures"}}
    with pytest.raises(ValueError, match=r"set data\.dataset\.person_pattern of ImageFolder, or take unit=record"):
        fit(training("person", dataset=unnamed))
    resumed = "--ckpt_path=person/checkpoints/last.ckpt"
    with pytest.raises(CheckpointError, match=r"model\.unit was 'person' and is 'record'"):
        fit(training("record", epochs=2), resumed)
    other = {"class_path": "ImageFolder", "init_args": {"root": "pictures", "person_pattern": r"^(patient\d)"}}
    with pytest.raises(CheckpointError, match=r"data\.dataset\.person_pattern was"):
        fit(training("person", epochs=2, dataset=other), resumed)
    teacher = fit(training("person", epochs=2, folder="longer"), resumed).model
    ((step, count),) = teacher.releases.items()
    assert (step.unit, count) == (Unit.PERSON, 4) and guarantee("longer")["unit"] == MEANS
