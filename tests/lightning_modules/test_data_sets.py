"""One batch of each data set, in files as its authors publish them, goes through each method."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from medmnist import INFO
from support import data_files
from support.runs import QUIET

from datamodules import ImageDataModule
from lightning_modules.cli import main

#: By name: what writes the files into a folder, and the arguments that read them from there.
DATA: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "CIFAR10": (data_files.write_cifar10, ["CIFAR10", "root=data", "verify=false"]),
    "CIFAR100": (data_files.write_cifar100, ["CIFAR100", "root=data", "verify=false"]),
    "SVHN": (data_files.write_svhn, ["SVHN", "root=data", "verify=false"]),
    "CelebA-G": (data_files.write_celeba, ["CelebA", "root=data", "verify=false", "size=32"]),
    "CelebA-H": (data_files.write_celeba, ["CelebA", "root=data", "verify=false", "size=32", "task=hair"]),
    "PneumoniaMNIST": (data_files.write_medmnist, ["MedMNIST", "root=data", "verify=false"]),
    "COVIDx": (data_files.write_radiographs, ["COVIDx", "root=data", "size=32"]),
    "ImageNet": (data_files.write_imagenet, ["ImageNet", "root=data", "size=32"]),
    "pictures": (
        lambda root: data_files.write_folders(root / "pictures"),
        ["ImageFolder", "root=data/pictures", "size=24", "channels=1", "test_fraction=0.3"],
    ),
    "CIFAR10-cat-dog-frog": (
        data_files.write_cifar10,
        ["CIFAR10", "root=data", "verify=false", 'classes=["dog", "frog", 3]'],
    ),
}
ASK_FOR_AREA = {"PneumoniaMNIST", "COVIDx", "CelebA-G", "pictures"}  # two classes, or the data set's custom

#: By method: the file of the digits' settings that it runs by, and what makes it small.
FEW = ["--trainer.limit_val_batches=1", "--trainer.log_every_n_steps=1", *QUIET]
ONE_STEP = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", *FEW]
TEACHERS = {
    "Teacher": ("teacher_digits", ["--data.batch_size=16", *ONE_STEP]),
    "DPSGDTeacher": ("dp_teacher_digits", ["--data.batch_size=8", "--model.delta=1e-6", *ONE_STEP]),
    "TeacherEnsemble": (
        "methods/ensemble_digits",
        ["--model.steps=1", "--data.num_teachers=4", "--data.require_all_classes=false", "--data.batch_size=2", *FEW],
    ),
}
# The files' 1e-5 is too much for the 162 770 faces of CelebA.
SMALL_STUDENT = ["--data.batch_size=16", "--model.budget.delta=1e-6", *ONE_STEP]
STUDENTS = {
    "Distillation": ("distillation_digits", "DPSGDTeacher", ["--model.pool_size=16"]),
    "DPDFD": ("dpdfd_digits", "Teacher", []),
    "DPSD": ("methods/dpsd_digits", "Teacher", ["--model.mechanism.top_k=2"]),
    "LabelDP": ("methods/labeldp_digits", "Teacher", []),
    "DGD": (
        "methods/dgd_digits",
        "TeacherEnsemble",
        # A step of the VAE, one of queries, and one of the student.
        ["--model.query_phase.queries=16", "--model.vae_phase.steps=1", "--trainer.limit_train_batches=3"],
    ),
}
#: Each data set by a teacher and its student, and each method on the data of two classes.
CASES = [(name, "DPDFD") for name in DATA] + [("PneumoniaMNIST", method) for method in STUDENTS if method != "DPDFD"]
FAST = [("PneumoniaMNIST", "DPDFD"), ("pictures", "DPDFD")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where files and teachers lie once one of these tests has made them."""
    return tmp_path_factory.mktemp("each")


def fit(name: str, file: str, *arguments: str, folder: str) -> tuple[object, ImageDataModule, torch.nn.Module]:
    write, (kind, *settings) = DATA[name]
    if not Path(f"made/{name}").exists():
        write(Path("data"))
        Path(f"made/{name}").mkdir(parents=True)
    # A teacher that nothing bounds has the data set itself as data; every other module wraps it.
    prefix = "--data" if file == "teacher_digits" else "--data.dataset"
    data = [f"{prefix}={kind}", *(f"{prefix}.{setting}" for setting in settings)]
    given = ["--config", f"sweeps/{file}.yaml", *data, *arguments, f"--trainer.default_root_dir={folder}"]
    cli = main(["fit", *given])
    assert cli is not None and cli.trainer.global_step >= 1
    wrapped = getattr(cli.datamodule, "dataset", cli.datamodule)
    assert isinstance(wrapped, ImageDataModule)
    return cli.trainer, wrapped, cli.model


def teacher_of(name: str, method: str) -> str:
    folder = f"runs/{name}/{method}"
    if not Path(folder, "result.json").is_file():
        file, small = TEACHERS[method]
        checkpoint = {"class_path": "ModelCheckpoint", "init_args": {"dirpath": folder, "filename": "teacher"}}
        fit(name, file, *small, f"--trainer.callbacks=[{json.dumps(checkpoint)}]", folder=folder)
    return f"{folder}/teacher.ckpt"


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    ("name", "method"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in CASES]
)
def test_a_batch_goes_through(name: str, method: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    file, teacher, small = STUDENTS[method]
    folder = f"runs/{name}/{method}"
    arguments = [f"--model.teacher.path={teacher_of(name, teacher)}", *SMALL_STUDENT, *small]
    _, data, model = fit(name, file, *arguments, folder=folder)
    images, labels = next(iter(data.test_dataloader()))
    assert images.shape[1:] == data.image_shape and images.min() >= -1 and images.max() <= 1
    assert labels.min() >= 0 and labels.max() < data.num_classes
    logits = model.eval()(images)
    assert logits.shape == (len(images), data.num_classes) and logits.isfinite().all()
    for made in (method, teacher):
        record = json.loads(Path("runs", name, made, "result.json").read_text())
        assert (record["dataset"], record["method"]) == (name, made) and 0 <= record["accuracy"] <= 1
        assert ("auroc" in record) is (name in ASK_FOR_AREA)


def test_every_data_set_is_among_them() -> None:
    import datamodules

    found = {name: kind for name, kind in vars(datamodules).items() if isinstance(kind, type)}
    kinds = {name for name, kind in found.items() if issubclass(kind, ImageDataModule)}
    # The files of sweeps/ have the first; the last two are made of another data set.
    elsewhere = {"Digits", "MNIST", "FashionMNIST", "ImageDataModule", "Shadowed", "ClientRecords"}
    assert {arguments[0] for _, arguments in DATA.values()} == kinds - elsewhere
    assert INFO["pneumoniamnist"]["python_class"] in DATA
