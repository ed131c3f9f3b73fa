"""A published folder holds the network and what is said of it, loads without this package, and nothing else leaves."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from onnxruntime import InferenceSession
from PIL import Image
from support.data_files import picture
from support.runs import csv_rows, guarantee, leaks, result, teacher_weights

from lightning_modules import load_student
from lightning_modules.callbacks.results import percent
from lightning_modules.cli import main
from lightning_modules.networks import SmallCNN
from lightning_modules.publishing import ExportError, export
from lightning_modules.publishing.model_card import inline
from lightning_modules.training.run import LOCK
from privacy.exported import AlteredError
from privacy.identity import CheckpointError


def run_export(run: str, *arguments: str, to: str = "out") -> Path:
    main(["export", run, "--to", to, *arguments])
    return Path(to)


def trained(run: str, prefix: str = "student.") -> dict[str, torch.Tensor]:
    state = torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def student(run: str) -> SmallCNN:
    network = SmallCNN(image_shape=(1, 8, 8), width=4, hidden=16)
    network.load_state_dict(trained(run))
    return network.eval()


def card(folder: Path) -> ModelCard:
    return ModelCard.load(folder / "README.md")


def test_it_loads_with_this_package_and_without(runs: Path, with_onnx: None) -> None:
    folder = run_export("generated")
    images = 2 * torch.rand(37, 1, 8, 8, generator=torch.Generator().manual_seed(1)) - 1
    session = InferenceSession(str(folder / "student.onnx"))
    given = torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
    with torch.no_grad():
        loaded, expected = load_student(folder), student("generated")(images)
        assert not loaded.training and torch.allclose(loaded(images), expected, atol=1e-6)  # the order of sums
        # The mutant: another student is no closer than this.
        assert not torch.allclose(given, student("bounded")(images), atol=1e-2)
    assert torch.allclose(given, expected, atol=1e-4)
    carried = session.get_modelmeta().custom_metadata_map
    assert {name: json.loads(text) for name, text in carried.items()} == {
        "class_names": [str(label) for label in range(10)], "image_shape": [1, 8, 8], "range": [-1.0, 1.0],
    }  # fmt: skip


def test_whoever_receives_it_can_check_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_export("bounded")
    main(["verify", str(folder)])
    assert re.search(r"record-level ε = [\d.]+ at δ = 1e-05 is what \d+ releases compose to", capsys.readouterr().out)
    whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    stated = json.loads(whole[folder / "guarantee.json"])

    def refused(message: str) -> None:
        with pytest.raises(AlteredError, match=message):
            main(["verify", str(folder)])
        for path, content in whole.items():
            path.write_bytes(content)

    for name in ("student.safetensors", "config.json", "README.md", "guarantee.md"):
        (folder / name).write_bytes(whole[folder / name][:-1])
        refused(f"{name} was altered")
    (folder / "config.json").unlink()
    refused("config.json is missing")
    short = {name: value for name, value in stated["guarantee"].items() if name != "runs"}
    claim = {**stated["published_claim"], "epsilon": 1e-9}
    incomplete = "has values that no guarantee has, or lacks some"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"guarantee": short}, incomplete),
        ({"published_claim": {**stated["published_claim"], "status": "a guarantee"}}, incomplete),
        ({"approved": True}, incomplete),
        ({"published_claim": claim}, "the published epsilon is 1e-09, and its theorem gives"),
    ]
    for changed, message in (
        ({"epsilon": stated["guarantee"]["epsilon"] / 2}, "its releases compose to"),
        ({"releases": [[stated["guarantee"]["releases"][0][0], 1]]}, "compose"),
        ({"releases": stated["guarantee"]["releases"] * 2}, "must be listed once each"),
        ({"unit": "one client: all records"}, "guarantee.md does not say what guarantee.json says"),
        ({"unit": "one patient for life"}, "its releases are about one record"),
        ({"relation": "any change of all records"}, "and its releases' add or remove"),
        ({"epsilon_of_run": -1.0}, "epsilon_of_run, epsilon and epsilon_all_runs"),
        ({"teacher_epsilon": 0.1}, "teacher_epsilon is 0.1, and its training gives"),
        ({"verified_by": "an authority"}, "cannot be read as the guarantee of an export"),
        ({"delta": 2}, "delta must lie between 0 and 1"),
    ):
        wrong.append(({"guarantee": {**stated["guarantee"], **changed}}, message))
    for changed, message in wrong:
        (folder / "guarantee.json").write_text(json.dumps({**stated, **changed}))
        refused(message)
    os.mkfifo(folder / "pipe")
    refused("pipe is a link or no plain file")
    (folder / "pipe").unlink()
    (folder / "guarantee.json").write_text(json.dumps(stated).replace('"delta"', '"delta": 0.1, "delta"', 1))
    refused("a name stands twice")
    card = b"# A student of epsilon = 0.1"
    (folder / "README.md").write_bytes(card)
    files = {**stated["files"], "README.md": hashlib.sha256(card).hexdigest()}
    (folder / "guarantee.json").write_text(json.dumps({**stated, "files": files}))
    refused("README.md does not say what guarantee.json says")
    (folder / "link").symlink_to(folder / "config.json")
    refused("link is a link")
    (folder / "link").unlink()


def test_nothing_but_the_student_leaves(runs: Path, with_onnx: None) -> None:
    folder = run_export("generated")
    content = torch.load("generated/checkpoints/last.ckpt", weights_only=True)
    private = teacher_weights("dp/checkpoints/last.ckpt")
    moments = [
        value
        for optimizer in content["optimizer_states"]
        for state in optimizer["state"].values()
        for value in state.values()
        if value.numel() >= 4 and value.abs().sum() > 0
    ]
    generator = [v for v in trained("generated", "generator.").values() if v.is_floating_point() and v.numel() >= 4]
    generator = [value for value in generator if value.unique().numel() > 1]
    own = [value for value in trained("generated").values() if value.is_floating_point() and value.numel() >= 4]
    assert private and moments and generator
    assert leaks(folder, private) == leaks(folder, moments) == leaks(folder, generator) == []
    # The same search finds what is there: the student in its own folder, the others in the run's.
    files = {Path(file).name for file in leaks(folder, own)}
    assert files >= {"student.safetensors", "student.onnx"}
    assert leaks("generated", moments) and leaks("generated", generator) and leaks("dp", private)
    words = ("last.ckpt", str(runs), "dp/checkpoints", str(Path(__file__).parents[3]))
    for file in (path for path in folder.rglob("*") if path.is_file()):
        found = [word for word in words if word.encode() in file.read_bytes()]
        assert not found, f"{file}: {found}"
    assert b"dp/checkpoints/last.ckpt" in Path("generated/config.yaml").read_bytes()
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "config.json", "confusion.png", "guarantee.json", "guarantee.md"),
        *("student.onnx", "student.safetensors"),
    }  # fmt: skip


def test_the_card_of_a_bounded_student(runs: Path) -> None:
    folder = run_export("bounded", "--license", "mit", to="my-digits")
    config = json.loads((folder / "config.json").read_text())
    assert config["class_names"] == [str(label) for label in range(10)] and config["image_shape"] == [1, 8, 8]
    found, record = card(folder), result("bounded")
    shown, balanced = found.data.eval_results
    assert (shown.metric_type, shown.dataset_name, shown.task_type) == ("accuracy", "Digits", "image-classification")
    assert (shown.metric_value, balanced.metric_value) == (record["accuracy"], record["balanced_accuracy"])
    assert "datasets" not in found.data.to_dict()  # which are names on the Hub: a folder's is none
    assert (found.data.license, found.data.library_name, found.data.model_name) == ("mit", "pytorch", "my-digits")
    assert "differential-privacy" in found.data.tags
    stated = json.loads((folder / "guarantee.json").read_text())["guarantee"]
    text = found.text
    for part in (
        "| record-level ε | 3 |",
        f"| unit | {stated['unit']} |",
        f"| neighbouring relation | {stated['relation']} |",
        f"| δ | {stated['delta']:g} |",
        "a claim of the paper, **not** a guarantee",
        "Theorem 3",
        f"**{100 * record['accuracy']:.2f} %**",
        "2 * x - 1",
        f"| 3 | {record['class_images'][3]} | {percent(record['recall'][3])} |",
        "![Test images by class and answer](confusion.png)",
        "always saying",
        *stated["assumptions"],
        *stated["not_covered"],
    ):
        assert part in text
    assert "NOT PROTECTED" not in text


def test_an_export_classifies_pictures_as_its_run_prepared_them(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_export("bounded")
    draw = np.random.default_rng(0)
    for name in ("b.png", "a.png", "deeper/c.png"):
        picture(draw.integers(0, 256, (12, 20), dtype=np.uint8), Path("new", name))
    Path("new/d.heic").touch()
    with pytest.warns(UserWarning, match=r"new: not read are 1 files \.heic"):
        main(["predict", str(folder), "--images", "new", "--to", "table.csv"])
    rows = csv_rows("table.csv")
    assert [row["file"] for row in rows] == ["a.png", "b.png", "deeper/c.png"]
    given = torch.tensor([[float(row[f"p({label})"]) for label in range(10)] for row in rows])
    pixels = [np.asarray(Image.open(Path("new", row["file"])).crop((4, 0, 16, 12)).resize((8, 8), 2)) for row in rows]
    squeezed = [np.asarray(Image.open(Path("new", row["file"])).resize((8, 8), 2)) for row in rows]
    with torch.no_grad():
        expected, unprepared = (
            student("bounded")(torch.tensor(np.stack(images))[:, None] / 127.5 - 1).softmax(dim=1)
            for images in (pixels, squeezed)
        )
    assert torch.allclose(given, expected, atol=1e-5)
    assert not torch.allclose(given, unprepared, atol=1e-3)  # the mutant that squeezes
    capsys.readouterr()
    main(["predict", str(folder), "--images=new"])
    assert capsys.readouterr().out == Path("table.csv").read_text()
    with pytest.raises(ValueError, match=r"--images must be a folder with pictures"):
        main(["predict", str(folder), "--images", "teachers"])


def test_an_unbounded_student_needs_a_flag_and_its_card_begins_with_that(runs: Path) -> None:
    with pytest.raises(ExportError, match="--unprotected"):
        run_export("private")
    assert not Path("out").exists()
    found = card(run_export("private", "--unprotected"))
    first = [line for line in found.text.splitlines() if line][1]
    assert first.startswith("> **NOT PROTECTED: nothing bounds what this model reveals")
    assert "differential-privacy" not in found.data.tags
    assert "| record-level ε | infinite (nothing bounds it) |" in found.text


def test_a_bound_that_protects_nobody_is_no_tag(runs: Path) -> None:
    edited("bounded", epsilon=3366491.99)
    Path("bounded/result.json").unlink()
    found = card(run_export("bounded"))
    assert "NOT PROTECTED in any meaningful sense: record-level ε = 3" in found.text
    assert "differential-privacy" not in found.data.tags


def test_a_teacher_by_dp_sgd_is_exported_itself(runs: Path) -> None:
    folder = run_export("dp")
    network = load_student(folder)
    assert all(torch.equal(value, trained("dp", "network.")[name]) for name, value in network.state_dict().items())
    found = card(folder)
    assert "by DP-SGD" in found.text and "| record-level ε | 3 |" in found.text
    config = json.loads((folder / "config.json").read_text())
    assert (config["role"], config["method"]) == ("teacher", "DPSGDTeacher")


def test_private_teachers_are_never_exported(runs: Path) -> None:
    for flags in ([], ["--unprotected"]):
        with pytest.raises(ExportError, match="private teacher, which is never exported"):
            run_export("teachers/digits.ckpt", *flags)
    several = {"state_dict": {}, "ensemble": {}, "pytorch-lightning_version": "2.5.0", "loops": {}}
    torch.save(several, "teachers/many.ckpt")
    with pytest.raises(ExportError, match="ensemble of teachers, which is never exported"):
        run_export("teachers/many.ckpt", "--unprotected")
    assert not Path("out").exists()


def edited(folder: str, /, **values: Any) -> None:
    file = Path(folder, "public/guarantee.json")
    content = json.loads(file.read_text())
    content["guarantee"].update(values)
    file.write_text(json.dumps(content))


def accessed(run: str) -> None:
    path = f"{run}/checkpoints/last.ckpt"
    content = torch.load(path, weights_only=True)
    content["distillation"]["uncharged_queries"] = ["something that was accessed after the guarantee"]
    torch.save(content, path)


@pytest.mark.parametrize(
    ("run", "spoil", "message"),
    [
        ("bounded", lambda: edited("bounded", queries_of_run=1), "went on after"),
        ("bounded", lambda: edited("bounded", epsilon=0.5), "went on after"),  # less than its own charges cost
        ("bounded", lambda: accessed("bounded"), "went on after"),
        ("bounded", lambda: edited("bounded", run="ab" * 16), "is of run abab"),
        ("bounded", lambda: Path("bounded/public/guarantee.json").unlink(), "holds no guarantee"),
        ("dp", lambda: edited("dp", epsilon=2.5), "went on after"),
        ("dp", lambda: edited("dp", epsilon="inf"), "it is never exported"),  # its noise can be drawn again
        ("dp", lambda: edited("dp", run="ab" * 16), "is of run abab"),
        ("bounded", lambda: Path("bounded/checkpoints/last.ckpt").write_bytes(b"PK"), "cannot be read"),
        ("bounded", lambda: Path("bounded/checkpoints/last.ckpt").unlink(), "RUN must be a run's folder"),
        (".", lambda: None, "RUN must be a run's folder"),
    ],
)
def test_what_no_guarantee_covers_is_refused(runs: Path, run: str, spoil: Callable[[], Any], message: str) -> None:
    spoil()
    with pytest.raises((ExportError, CheckpointError), match=message):
        run_export(run, "--unprotected")
    assert not Path("out").exists() and not list(Path(".").glob(".out*"))


def test_a_running_fit_is_refused_and_one_that_was_killed_is_not(runs: Path) -> None:
    with Path("bounded", LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ExportError, match="still running"):
            run_export("bounded")
    run_export("bounded")  # a lock that nobody holds


@pytest.mark.parametrize("changed", [{"steps": 2}, {"run": "ab" * 16}])
def test_the_accuracy_of_another_state_or_run_is_not_stated(
    runs: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an interrupted fit; and two runs of one configuration may write to one path, with the same steps and ε."""
    record = result("bounded")
    assert record["run"] == guarantee("bounded")["run"] and record["steps"] != 2
    Path("bounded/result.json").write_text(json.dumps({**record, **changed}))
    found = card(run_export("bounded"))
    assert "Unknown. No record of a finished fit matches this state" in found.text
    assert found.data.eval_results is None
    assert "the model card states no accuracy" in capsys.readouterr().out
    Path("bounded/result.json").write_text(json.dumps(record))
    assert "at the last step of the fit" in card(run_export("bounded", "--force")).text


def test_what_is_there_is_not_replaced_unasked(runs: Path) -> None:
    folder = run_export("bounded")
    with pytest.raises(ExportError, match="Add --force"):
        run_export("dp")
    run_export("dp", "--force")
    assert json.loads((folder / "config.json").read_text())["role"] == "teacher"
    (runs / "mine").mkdir()
    (runs / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ExportError, match="files that are not an export"):
        run_export("dp", "--force", to="mine")
    assert (runs / "mine" / "letter.txt").read_text() == "dear"
    assert not list(runs.glob(".*.part")) and not list(runs.glob(".*.old"))


def test_an_export_appears_whole_or_not_at_all(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (run_export("dp") / "README.md").read_text()

    def full(*_: Any, **__: Any) -> str:
        raise OSError("no space left")

    monkeypatch.setattr(export, "model_card", full)
    for to, flags in (("out", ["--force"]), ("new", [])):
        with pytest.raises(OSError, match="no space left"):
            run_export("bounded", *flags, to=to)
    assert (runs / "out" / "README.md").read_text() == before
    assert not (runs / "new").exists() and not list(runs.glob(".*.part"))


def test_a_name_cannot_say_something_else_in_the_card() -> None:
    shown = inline("cat\n\n# Protected: ε = 0 [see](http://x) <b>`x`</b>")
    assert "\n" not in shown and "\\# Protected" in shown
    assert "[" not in shown.replace("\\[", "") and "<" not in shown.replace("\\<", "")
    assert inline("T-shirt/top, Straße 5") == "T-shirt/top, Straße 5"


PAGE = Path(__file__).parents[3] / "docs" / "use_your_student.md"


@pytest.mark.slow
def test_the_page_runs(runs: Path, with_onnx: None) -> None:
    Path("runs/my_run").mkdir(parents=True)
    shutil.copytree("generated", "runs/my_run/version_0")
    picture(np.zeros((12, 16), dtype=np.uint8), Path("new-pictures/1.png"))
    blocks = re.findall(r"```(bash|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {}
    given = []
    for kind, text in blocks:
        if kind == "bash":
            command, *arguments = shlex.split(text)
            assert command == "LightningCLI"
            main(arguments)
            continue
        exec(compile(text, str(PAGE), "exec"), names)
        if "network" in names:
            given.append(names["network"](torch.zeros(5, 1, 8, 8)))
    assert len(blocks) == 6 and torch.allclose(given[0], given[1], atol=1e-4)
    assert torch.allclose(torch.from_numpy(names["logits"]), given[0], atol=1e-4)
    assert Path("runs/my_run/version_0/predictions.csv").is_file()
    listed = set(re.findall(r"`([\w.]+/?)`", PAGE.read_text(encoding="utf-8")))
    assert {f"{path.name}/" if path.is_dir() else path.name for path in Path("my-student").iterdir()} <= listed


def test_a_licence_is_asked_for_and_without_the_extra_for_onnx_the_export_says_so(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = card(run_export("bounded")), capsys.readouterr().out
    assert found.data.license == "unknown" and "None is stated" in found.text
    assert "--license apache-2.0" in said and "student.onnx was not written: ONNX needs" in said
    assert not Path("out/student.onnx").exists() and "Nothing here loads without it" in found.text
    assert "None is stated" not in card(run_export("bounded", "--license", "mit", "--force")).text
    assert "--license apache-2.0" not in capsys.readouterr().out
