"""Networks of anyone's on the command line: what the parser cannot take is handed on, all else is left alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_modules.runtime.network_names import find_networks, with_networks

FOREIGN = "lightning_modules.networks.foreign.ForeignNetwork"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    Path("their_net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n    def __init__(self, n, w=2):\n        super().__init__()\n"
        "class First(nn.Module):\n    def __init__(self, *, depth: int):\n        super().__init__()\n"
        "class Plain(nn.Module):\n    def __init__(self, *, num_classes: int):\n        super().__init__()\n"
    )


def model(args: list[str]) -> list[Any]:
    """What stands for networks in configurations that came in place of arguments."""
    return [json.loads(one.removeprefix("--config="))["model"] for one in args if one.startswith("--config={")]


def spec(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": FOREIGN, "init_args": {"name": name, "arguments": arguments}}


def test_flags_become_one_network() -> None:
    found = find_networks(
        ["fit", "--model.teacher.network", "their_net.Net", "--model.teacher.network.n=3", "--model.batch_size", "4",
         "--model.teacher.network.init_args.w", "[1, 2]"]
    )  # fmt: skip
    assert model(found)[-1] == {"init_args": {"teacher": {"network": spec("their_net.Net", n=3, w=[1, 2])}}}
    assert "--model.batch_size" in found and not any(one.startswith("--model.teacher.network") for one in found)


def test_files_and_flags_together() -> None:
    Path("nets").mkdir()
    Path("nets/n.py").write_text(Path("their_net.py").read_text())
    network = {"class_path": "nets/n.py:Net", "init_args": {"n": 1}}
    given = {"model": {"class_path": "DPDFD", "init_args": {"teacher": {"network": network, "path": "x"}}}}
    Path("given.json").write_text(json.dumps(given))
    found = find_networks(["fit", "--config", "given.json", "--model.teacher.network.w", "5"])
    first, second = model(found)
    assert first["init_args"] == {"teacher": {"network": spec("nets/n.py:Net", n=1), "path": "x"}}
    assert second["init_args"]["teacher"]["network"] == spec("nets/n.py:Net", n=1, w=5)
    assert with_networks({"student": "their_net.First"})["student"]["network"] == spec("their_net.First")
    baseline = {"generator_phase": {"baseline": {"network": "torchvision.models.resnet18"}}}
    assert with_networks(baseline)["generator_phase"]["baseline"]["network"] == spec("torchvision.models.resnet18")


def test_short_forms_are_written_out_so_that_later_settings_add_to_them() -> None:
    found = find_networks(["fit", "--model.teacher", "a.ckpt", "--model.images=prior", "--model.student", "SmallCNN"])
    assert [one["init_args"] for one in model(found)] == [
        {"teacher": {"path": "a.ckpt"}}, {"images": {"source": "prior"}}, {"student": {"network": "SmallCNN"}},
    ]  # fmt: skip
    phase = {"baseline": "student"}
    assert with_networks({"teacher": "a.ckpt", "generator_phase": phase}) == {
        "teacher": {"path": "a.ckpt"}, "generator_phase": phase,
    }  # fmt: skip
    assert with_networks({"generator_phase": {"baseline": "b.ckpt"}})["generator_phase"]["baseline"] == {
        "path": "b.ckpt"
    }


@pytest.mark.parametrize(
    "args",
    [
        ["fit", "--model.student.network", "SmallCNN", "--model.student.network.width", "3"],
        ["fit", "--model.student.network=lightning_modules.networks.SmallCNN"],
        ["fit", "--model.student.network", "their_net.Plain"],
        ["fit", "--model.annotator", "privacy.annotators.GradientAnnotator", "--model.annotator.budget.delta=1e-5"],
        ["fit", "--config", "missing.yaml", "--model", "DPDFD"],
    ],
)
def test_what_the_parser_takes_is_left_to_it(args: list[str]) -> None:
    assert find_networks(args) == args


def test_the_current_folder_comes_behind_all_that_is_installed(tmp_path: Path) -> None:
    find_networks(["fit"])
    assert sys.path[-1] == str(tmp_path)
    with pytest.raises(ValueError, match="there is no module their_nets"):
        find_networks(["fit", "--model.student", "their_nets.Net"])
