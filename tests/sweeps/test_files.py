"""Every file in sweeps/ is read, and every fit among them runs a batch on tiny data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from medmnist import INFO
from support.data_files import write_cifar10, write_medmnist, write_mnist
from support.runs import QUIET

import sweeps
from lightning_modules.cli import main
from sweeps.runner.spec import Spec

FOLDER = Path(sweeps.__path__[0])
# Tables are read in test_tables, W&B's sweeps in test_wandb_files.
FILES = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("methods/*.yaml"), *FOLDER.glob("data/*.yaml")])
ALONE = [path for path in FILES if "fits" in yaml.safe_load(path.read_text())]
PIPELINES = [
    *map(str, ALONE),
    *(name for file in FOLDER.glob("pipelines/*.yaml") for name in yaml.safe_load(file.read_text())),
]
FITS = [path for path in FILES if path not in ALONE]
FAST = {path.stem for path in FITS if "digits" in path.stem and "distillation" not in path.stem} | {"dpdfd_mnist"}
#: Settings that follow a recipe, and one that they are tried on.
FOLLOWS = {
    "generated_images": "dpdfd_mnist",
    "generated_images_labels": "dpsd_label_mnist",
    "generated_images_labeldp": "labeldp_mnist",
    "dgd_as_printed": "dgd_digits",
    "ensemble_as_printed": "ensemble_digits",
    "fashionmnist": "dpsd_mnist",
    "fashionmnist_private": "clients_mnist",
}
TINY = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--trainer.limit_val_batches=1", *QUIET]


@pytest.mark.parametrize("name", PIPELINES, ids=lambda name: Path(name).stem)
def test_a_pipeline_is_read(name: str) -> None:
    assert Spec.read(name).pipeline()


@pytest.fixture(scope="session")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where teachers lie once one of these tests has made them."""
    return tmp_path_factory.mktemp("sweeps")


def few(config: dict[str, Any]) -> list[str]:
    """Options by which a recipe takes few records."""
    # A Poisson sample of 4 expected records is empty once in 55 times, and direct training then updates nothing.
    given = [f"--data.batch_size={32 if config['data']['class_path'] == 'PoissonSampled' else 4}"]
    if config["data"]["class_path"] == "Shards":
        given += ["--data.num_teachers=4", "--data.require_all_classes=false"]
    return given


def recipe(teacher: str) -> list[str]:
    """Arguments that make a teacher's file; the fit of an ensemble ends when all are trained."""
    path = next(path for path in FITS if f"filename: {teacher}," in path.read_text())
    config = yaml.safe_load(path.read_text())
    ensemble = config["model"]["class_path"] == "TeacherEnsemble"
    return ["--config", str(path), *few(config), *(["--model.steps=1", *QUIET] if ensemble else TINY)]


@pytest.mark.usefixtures("quick_whitening")
@pytest.mark.parametrize(
    # The fast suite runs one file of each kind: those of other data sets are the same with other settings.
    "path",
    [pytest.param(path, id=path.stem, marks=() if path.stem in FAST else pytest.mark.slow) for path in FITS],
)
def test_a_fit_runs_one_batch(path: Path, teachers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(teachers)
    for name in ("MNIST", "FashionMNIST"):
        if not (teachers / "data" / name).exists():
            write_mnist(teachers / "data", name=name)
    if not (teachers / "data" / "medmnist").exists():
        write_cifar10(teachers / "data")
        write_medmnist(teachers / "data")
    # The files are small ones that were made here, and not those that were published.
    monkeypatch.setattr("datamodules.base.check_integrity", lambda *_: True)
    monkeypatch.setitem(INFO["pneumoniamnist"], "n_samples", {"train": 60, "val": 20, "test": 30})
    config, configs = yaml.safe_load(path.read_text()), ["--config", str(path)]
    if path.stem in FOLLOWS:
        followed = next(one for one in FITS if one.stem == FOLLOWS[path.stem])
        configs = ["--config", str(followed), *configs]
        config = yaml.safe_load(followed.read_text())
    arguments = [*few(config), f"--trainer.default_root_dir=runs/{path.stem}", *TINY]
    if config["data"]["class_path"] == "Clients":
        # Teachers that are done: students in other files are of them.
        arguments += ["--model.local_steps=1" if config["model"]["class_path"] == "FedAvg" else "--model.steps=1"]
    if "image_terms" in config["model"].get("init_args", {}):
        arguments += ["--model.image_terms.steps=1"]
    if config["model"]["class_path"] == "Distillation":
        arguments += ["--model.pool_size=8"]
        if "queries" in config["model"]["init_args"]:
            arguments += ["--model.queries=8"]
    own = (yaml.safe_load(path.read_text()).get("model") or {}).get("init_args", {})
    settings = {**config["model"].get("init_args", {}), **own}
    teacher = settings.get("teacher", {}).get("path") or settings.get("clients", {}).get("init_args", {}).get(
        "teachers"
    )
    if path.stem == "distillation_scattering_fashionmnist":  # whose own teacher is made in table `records`
        teacher = "teachers/fashionmnist_dp.ckpt"
        arguments += [f"--model.teacher.path={teacher}"]
    if teacher is not None and not Path(teacher).exists():
        main(["fit", *recipe(Path(teacher).stem)])
    cli = main(["fit", *configs, *arguments, "--force"])  # over teachers that others were made of
    assert cli is not None and cli.trainer.global_step >= 1
    assert (teachers / "runs" / path.stem / "result.json").is_file()
