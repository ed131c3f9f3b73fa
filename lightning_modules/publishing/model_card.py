"""`README.md` of a published folder: a model card in Hugging Face's format."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from lightning_modules.networks.named_code import unknown_code
from lightning_modules.publishing.formats import ONNX, TOLERANCE
from lightning_modules.publishing.loading import WEIGHTS, name_of
from lightning_modules.publishing.run import FinishedRun
from privacy.checks import round_up
from privacy.exported import section_of
from privacy.guarantee import MEANINGFUL_EPSILON

CARD = "README.md"


def model_card(run: FinishedRun, *, name: str, license_name: str, files: list[str]) -> str:
    """Write the model card of a run whose folder holds `files`; `license_name` is Hugging Face's identifier."""
    values = _front_matter(run, name=name, license_name=license_name)
    front = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    data = run.stated["private_data"]
    sections = [
        f"# {name}",
        _warning(run),
        _what(run),
        "## Privacy",
        section_of(run.page),
        "## Accuracy",
        _accuracy(run),
        "## Data",
        f"Trained on {data}, which is private; judged on the public test split."
        if run.role == "teacher"
        else f"The teacher was trained on {data}, which is private, and is not part of this folder.",
        "## Intended use and limits",
        _use(run),
        "## Input and output",
        _preprocessing(run),
        "## Loading it",
        _loading(run, files),
        "## Files",
        "\n".join(f"- `{file}`: {words}" for file, words in _FILES.items() if file in files),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(section for section in sections if section) + "\n"


_FILES = {
    WEIGHTS: "the weights",
    "config.json": "architecture, classes, shape and preprocessing",
    "guarantee.md": "the guarantee for the private data, human-readable",
    "guarantee.json": "the same, machine-readable",
    ONNX: "the network as ONNX",
}


def _front_matter(run: FinishedRun, *, name: str, license_name: str) -> dict[str, Any]:
    tags = ["image-classification", "pytorch"]
    tags += ["data-free-distillation", "knowledge-distillation"] if run.role == "student" else []
    # A tag is read without ε.
    tags += ["differential-privacy"] if run.epsilon <= MEANINGFUL_EPSILON else []
    front: dict[str, Any] = {
        "license": license_name,
        "library_name": "pytorch",
        "pipeline_tag": "image-classification",
        "tags": tags,
        "datasets": [run.data],
        "metrics": ["accuracy"],
    }
    if run.record is not None:
        result = {
            "task": {"type": "image-classification", "name": "Image Classification"},
            "dataset": {"type": run.data.lower(), "name": run.data, "split": "test"},
            "metrics": [{"type": "accuracy", "name": "Accuracy", "value": float(run.record["accuracy"])}],
        }
        front["model-index"] = [{"name": name, "results": [result]}]
    return front


def _warning(run: FinishedRun) -> str:
    data = run.stated["private_data"]
    if math.isinf(run.epsilon):
        return (
            f"> **NOT PROTECTED: nothing bounds what this model reveals about a single record of {data}** "
            "(record-level ε is infinite). It was exported anyway, by explicit request. Treat it "
            "like the private model that it was made from."
        )
    if run.epsilon > MEANINGFUL_EPSILON:
        return (
            f"> **NOT PROTECTED in any meaningful sense: {run.level}-level ε = {round_up(run.epsilon)}** (δ = "
            f"{run.stated['delta']:g}) bounds nothing that would matter to a {run.level} of {data}. Treat it "
            "like the private model that it was made from."
        )
    return ""


def inline(text: str) -> str:
    """Escape a user-supplied name for the card: one line, without Markdown or HTML syntax."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


def _what(run: FinishedRun) -> str:
    shape = "×".join(map(str, run.image_shape))
    kind = name_of(run.architecture).rsplit(".", 1)[-1]
    origin = (
        f"A student of a private model ({run.method}, {run.steps:,} steps)"
        if run.role == "student"
        else f"A classifier that was trained on the private images by DP-SGD ({run.method}, {run.steps:,} steps)"
    )
    return (
        f"{origin}. It distinguishes {run.num_classes} classes in images of {shape} (channels × height × width): "
        f"{', '.join(map(inline, run.class_names[:20]))}{' …' if run.num_classes > 20 else ''}. Architecture: `{kind}`."
    )


def _accuracy(run: FinishedRun) -> str:
    if run.record is None:
        return (
            "Unknown. No record of a finished fit matches this state of the network: the fit was interrupted, or this "
            "is not its last step."
        )
    data = (run.record.get("config") or {}).get("data") or {}
    half = (data.get("init_args") or {}).get("evaluation") == "selection"
    part = "one half of the test split; the other half may have been selected by" if half else "the whole test split"
    text = (
        f"**{100 * float(run.record['accuracy']):.2f} %** of the images of {run.data}, on {part}, at the last step of "
        "the fit: no checkpoint was chosen by it within the run. The test split is public by assumption."
    )
    if "calibration_error" in run.record:
        text += f" Expected calibration error: {100 * run.record['calibration_error']:.1f} points."
    if run.record.get("largest_share", 0) >= 0.99:
        text += " **It has collapsed: it assigns nearly all images to one class.**"
    return text


def _use(run: FinishedRun) -> str:
    caution = (
        "It must be treated like the private model itself"
        if run.epsilon > MEANINGFUL_EPSILON
        else "The bound is about this folder; other models of the same private data compose with it"
    )
    return (
        f"For classifying images like those of {run.data}, and for research on private learning. It was measured on "
        "that data set's test split alone: nothing is known about other images, rare classes, or how errors affect "
        f"groups of people. It is not a medical device and not a basis for decisions about people. {caution}."
    )


def _preprocessing(run: FinishedRun) -> str:
    channels, height, width = run.image_shape
    colours = {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels")
    return (
        f"Input: float32, shape (N, {channels}, {height}, {width}), {colours}, values in [-1, 1]: an image `x` in "
        "[0, 1], as torchvision's `ToTensor` gives it, becomes `2 * x - 1`. Prepare pictures as `preprocessing` in "
        "`config.json` says. "
        f"Output: logits, shape (N, {run.num_classes}), in the order of `class_names` in `config.json`; `softmax` "
        "turns them into probabilities."
    )


def _loading(run: FinishedRun, files: list[str]) -> str:
    trusted = ", trust_code=True" if unknown_code(run.architecture) else ""
    ways = [
        "With the package private-model-transcription:",
        f'```python\nfrom lightning_modules import load_student\n\nnetwork = load_student("."{trusted})\n```',
    ]
    if ONNX in files:
        ways += [
            "Without torch:",
            f'```python\nimport onnxruntime\n\nsession = onnxruntime.InferenceSession("{ONNX}")\n'
            'logits = session.run(["logits"], {"images": images})[0]  # numpy, float32\n```',
            f"Its logits were compared with the network's when it was written: they agree within {TOLERANCE:g}.",
        ]
    else:
        ways.append(
            f"Nothing here loads without it: `{WEIGHTS}` holds only weights, for which it builds the network. An "
            "export with `--onnx` includes a file that loads without it."
        )
    return "\n\n".join(ways)
