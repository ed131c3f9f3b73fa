"""A file from elsewhere names code in every place where something is built by it: none of it is imported or called."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support.runs import configuration

from lightning_modules.cli import main
from lightning_modules.dpdfd import DPDFD
from lightning_modules.named_code import require_known_code
from lightning_modules.publishing import export as export_module
from lightning_modules.teachers.config import TeacherConfig

MARKER = Path("marker")
STUDENT, TEACHER = Path("bounded/checkpoints/last.ckpt"), Path("dp/checkpoints/last.ckpt")
SHAPE: dict[str, Any] = {"num_classes": 10, "image_shape": (1, 8, 8)}


def told(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"class_path": "External", "init_args": {"name": name, "arguments": arguments}}


SYSTEM = told("os.system", command="touch marker")
SPECS: dict[str, Any] = {
    "os.system": SYSTEM,
    "a class path": {"class_path": "os.system", "init_args": {"command": "touch marker"}},
    "a stranger's module": told("theirs.Net"),
    "a stranger's class": "theirs.Net",
    "a file of code": told("theirs.py:Net"),
    "eval": told("builtins.eval", source="open('marker', 'w')"),
    "what a module of ours has imported": told("lightning_modules.training.run.os.system", command="touch marker"),
    "what a module of torch has imported": told("torch.nn.parallel.distributed.os.system", command="touch marker"),
    "a function of ours": told("privacy.journal.write_atomically", path="marker", content="x"),
    "a function of torch": told("torch.nn.parallel.distributed.torch.hub.load", repo_or_dir=".", source="local"),
    "an argument": told("torch.nn.Sequential", args={"class_path": "os.system", "init_args": {"command": "true"}}),
    "a text that holds settings": json.dumps(SYSTEM),
    "an escaped text": json.dumps(SYSTEM).replace("os.system", "os\\u002esystem"),
    "a file of settings": "settings.txt",
    "a name like torchvision's": "torchvision.models_of_mine.Net",
    "a function of torchvision": "torchvision.datasets.utils.download_url",
    "what a module of torchvision has imported": "torchvision.models._api.inspect",
    "a command of ours": "lightning_modules.cli.main",
    "settings of ours that name code": told("lightning_modules.networks.External", name="theirs.Net"),
    "what reads names": told("lightning_modules.named_code.named_object", name="theirs.py:Net"),
    "an argument of torchvision's": told("torchvision.models.resnet.ResNet", norm_layer="theirs.Net"),
    "a module called like a file": "cool.ckpt",
    "what builds any of torchvision's": told("torchvision.models.get_model", name="resnet18"),
}  # fmt: skip


@pytest.fixture
def place(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (runs / "theirs.py").write_text("open('marker', 'w').close()\nclass Net: pass\nclass DPDFD: pass\n")
    (runs / "cool").mkdir()
    (runs / "cool" / "ckpt.py").write_text("open('marker', 'w').close()\n")
    (runs / "settings.txt").write_text(json.dumps(SYSTEM))
    monkeypatch.syspath_prepend(str(runs))
    sys.modules.pop("theirs", None)
    yield runs
    sys.modules.pop("theirs", None)


@pytest.mark.parametrize("kind", SPECS)
def test_what_a_file_may_not_name(place: Path, kind: str) -> None:
    with pytest.raises(ValueError, match="code that a file names is not run"):
        require_known_code({"student": [SPECS[kind]]})
    assert not MARKER.exists() and "theirs" not in sys.modules


def test_a_module_of_the_current_folder_is_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(place))])
    with pytest.raises(ValueError, match="code that a file names is not run"):
        require_known_code("theirs.Net")
    assert not MARKER.exists()


def test_what_a_file_may_name(place: Path) -> None:
    require_known_code(
        [
            {"class_path": "SmallCNN", "init_args": {"width": 4}},
            {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.1}},
            {"class_path": "privacy.mechanisms.NoisyGradients"},
            told("torchvision.models.resnet18", norm_layer="torch.nn.BatchNorm2d", padding_mode="zeros"),
            told("torchvision.models.resnet.ResNet", block="torchvision.models.resnet.BasicBlock"),
            ["test.ckpt", "runs/theirs.pt", "settings.yaml", "bounded", "MNIST/train", "1.5", "[0, 1]"],
        ]
    )
    # In this command somebody named it.
    require_known_code([told("theirs.py:Net"), "theirs.Net"], named=[str(place / "theirs.py:Net"), "theirs.Net"])
    with pytest.raises(ValueError, match=r"theirs\.py:Other"):
        require_known_code(told("theirs.py:Other"), named=["theirs.py:Net"])
    assert not MARKER.exists()


def changed(file: Path, **settings: Any) -> None:
    content = torch.load(file, weights_only=True)
    content["hyper_parameters"].update(settings)
    torch.save(content, file)


def export(*more: str) -> None:
    main(["export", "bounded", "--to", "out", "--force", *more])


def of_student() -> None:
    changed(STUDENT, student={"network": SYSTEM})
    export()


def evaluated() -> None:
    changed(STUDENT, _class_path="theirs.DPDFD")
    main(["test", "--config", "bounded/config.yaml", "--ckpt_path", str(STUDENT), "--trainer.logger=false"])


def of_a_folder() -> None:
    student = torch.load(STUDENT, weights_only=True)["hyper_parameters"]["student"]
    changed(STUDENT, student={**student, "network": SYSTEM})
    file = Path("bounded/config.yaml")
    values = yaml.safe_load(file.read_text())
    values["model"]["init_args"]["student"]["network"] = SYSTEM
    file.write_text(yaml.safe_dump(values))
    main(["test", "bounded"])


def loaded() -> None:
    changed(STUDENT, student={"network": SYSTEM})
    DPDFD.load_from_checkpoint(STUDENT, map_location="cpu")


def under_another_section() -> None:
    content = torch.load(STUDENT, weights_only=True)
    content["hparams"] = {"student": {"network": SYSTEM}}
    content["hyper_parameters"].pop("student", None)
    torch.save(content, STUDENT)
    DPDFD.load_from_checkpoint(STUDENT, map_location="cpu")


def taught() -> None:
    changed(TEACHER, network=SYSTEM)
    TeacherConfig(path=TEACHER).load(**SHAPE)


def taught_by_many() -> None:
    ensemble = {"weights": {}, "done": 1, "settings": {"num_teachers": 1}}
    torch.save({"ensemble": ensemble, "hyper_parameters": {"network": SYSTEM}}, "many.ckpt")
    TeacherConfig(path="many.ckpt").load_ensemble(**SHAPE)


def of_client() -> None:
    changed(TEACHER, network=SYSTEM)
    clients = {"class_path": "LocalClients", "init_args": {"teachers": [str(TEACHER), "teachers/digits.ckpt"]}}
    config = configuration("federation", class_path="FedDPSD", model={"clients": clients, "teacher": None})
    config["model"]["init_args"].pop("teacher")
    Path("federation.yaml").write_text(json.dumps(config))
    main(["fit", "--config", "federation.yaml"])


def distilled() -> None:
    changed(TEACHER, network=SYSTEM)
    main(["distill", "--teacher", str(TEACHER), "--data", "Digits", "--to", "out", "--steps", "1"])


WAYS: dict[str, Callable[[], None]] = {
    "export": of_student,
    "test": evaluated,
    "test of a folder that was received": of_a_folder,
    "load_from_checkpoint": loaded,
    "load_from_checkpoint, another section": under_another_section,
    "teacher": taught,
    "ensemble": taught_by_many,
    "client": of_client,
    "distill": distilled,
}


@pytest.mark.parametrize("way", WAYS)
def test_nothing_that_a_file_names_is_run(place: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with pytest.raises((ValueError, SystemExit), match="code that a file names is not run"):
        WAYS[way]()
    assert not MARKER.exists() and "theirs" not in sys.modules
    # The control: what is run without the gate.
    monkeypatch.setattr("lightning_modules.named_code.unknown_code", lambda *_, **__: None)
    with contextlib.suppress(Exception, SystemExit):
        WAYS[way]()
    assert MARKER.exists()


def test_resuming_builds_what_the_configuration_says(place: Path) -> None:
    changed(STUDENT, student={"network": SYSTEM}, mechanism={"class_path": "theirs.NoisyGradients"})
    with pytest.raises((ValueError, SystemExit), match=r"model\.student"):
        main(["fit", "--config", "bounded/config.yaml", "--ckpt_path", str(STUDENT)])
    assert not MARKER.exists() and "theirs" not in sys.modules


@pytest.mark.parametrize("broken", [False, True])
def test_no_folder_of_this_machine_is_published(place: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    if broken:  # the control
        for shortening in ("without_folders", "_without_paths"):
            monkeypatch.setattr(f"lightning_modules.publishing.export.{shortening}", lambda value: value)
    (place / "HIV study (2024)").mkdir()
    (place / "HIV study (2024)" / "own.py").write_text("from lightning_modules.networks import SmallCNN as Net\n")
    name = f"{place}/HIV study (2024)/own.py:Net"
    built = torch.load(STUDENT, weights_only=True)["hyper_parameters"]["student"]["network"]["init_args"]
    own = {key: value for key, value in built.items() if key not in SHAPE}
    changed(STUDENT, student={"network": told(name, **own)})
    export("--network", name)
    files = [file for folder in ("bounded/public", "out") for file in Path(folder).rglob("*") if file.is_file()]
    nested = export_module._without_paths({"features": {"class_path": name}, "files": ["a/b.csv"]})
    assert broken or nested == {"features": {"class_path": "own.py:Net"}, "files": ["a/b.csv"]}
    assert any(b"HIV study" in file.read_bytes() for file in files) is broken
