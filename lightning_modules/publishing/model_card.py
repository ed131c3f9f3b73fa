"""`README.md` of a published folder: a model card in Hugging Face's format."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.callbacks.results import judged, percent, useless
from lightning_modules.named_code import unknown_code
from lightning_modules.publishing.folder import WEIGHTS, left_out, name_of
from lightning_modules.publishing.onnx import ONNX, TOLERANCE
from lightning_modules.publishing.run import FinishedRun
from privacy.checks import round_up
from privacy.exported import section_of
from privacy.guarantee import MEANINGFUL_EPSILON

CARD = "README.md"
CONFUSION = "confusion.png"

_FILES = {
    WEIGHTS: "the weights",
    "config.json": "architecture, classes, shape and preprocessing",
    "guarantee.md": "the guarantee for the private data, human-readable",
    "guarantee.json": "the same, machine-readable",
    ONNX: "the network as ONNX",
    CONFUSION: "which classes the network takes for which, on the test split",
}

_WITH_ONNX = f"""Without torch:

```python
import onnxruntime

session = onnxruntime.InferenceSession("{ONNX}")
logits = session.run(["logits"], {{"images": images}})[0]  # numpy, float32
```

Its logits were compared with the network's when it was written: they agree within {TOLERANCE:g}."""

_WITHOUT_ONNX = (
    f"Nothing here loads without it: `{WEIGHTS}` holds only weights, for which it builds the network. ONNX could not "
    "be written when this was exported."
)

_PARTLY = (
    f"`{WEIGHTS}` holds what was trained alone, not the fixed features before it: the package computes {{}} when it "
    "builds the network.\n\n"
)

_ORIGINS = {
    "student": "A student of a private model",
    "teacher": "A classifier that was trained on the private images by DP-SGD",
}
_DATA = {
    "student": "The teacher was trained on {}, which is private, and is not part of this folder.",
    "teacher": "Trained on {}, which is private; judged on the public test split.",
}
_CAUTIONS = (
    "The bound is about this folder; other models of the same private data compose with it",
    "It must be treated like the private model itself",
)


def model_card(run: FinishedRun, *, name: str, license_name: str, files: list[str]) -> str:
    """Writes the model card of a run whose folder holds `files`; `license_name` is Hugging Face's, or empty."""
    values = _front_matter(run, name=name, license_name=license_name)
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    return template.format(
        run=run,
        front=yaml.safe_dump(values, sort_keys=False, allow_unicode=True),
        name=name,
        warning=_warning(run),
        origin=f"{_ORIGINS[run.role]} ({run.method}, {run.steps:,} steps)",
        shape="×".join(map(str, run.image_shape)),
        classes=", ".join(map(inline, run.class_names[:20])) + (" …" if run.num_classes > 20 else ""),
        kind=name_of(run.architecture).rsplit(".", 1)[-1],
        privacy=section_of(run.guarantee.to_markdown()),
        accuracy=_accuracy(run),
        data=_DATA[run.role].format(run.guarantee.private_data),
        caution=_CAUTIONS[run.guarantee.epsilon > MEANINGFUL_EPSILON],
        sizes=", ".join(map(str, run.image_shape)),
        colours={1: "grey", 3: "RGB"}.get(run.image_shape[0], f"{run.image_shape[0]} channels"),
        trusted=", trust_code=True" if unknown_code(run.architecture) else "",
        partly=_PARTLY.format(", ".join(missing)) if (missing := left_out(run.network)) else "",
        alone=_WITH_ONNX if ONNX in files else _WITHOUT_ONNX,
        licence=f"`{license_name}`." if license_name else "None is stated: ask whoever published this.",
        files="\n".join(f"- `{file}`: {words}" for file, words in _FILES.items() if file in files),
    )


#: Figures of a record, as Hugging Face calls them.
_METRICS = (
    ("accuracy", "accuracy", "Accuracy"),
    ("balanced_accuracy", "recall", "Balanced accuracy (mean recall)"),
    ("auroc", "roc_auc", "Area under the ROC curve"),
)


def _front_matter(run: FinishedRun, *, name: str, license_name: str) -> dict[str, Any]:
    tags = ["image-classification", "pytorch"]
    tags += ["data-free-distillation", "knowledge-distillation"] if run.role == "student" else []
    # A tag is read without ε.
    tags += ["differential-privacy"] if run.guarantee.epsilon <= MEANINGFUL_EPSILON else []
    front: dict[str, Any] = {
        "license": license_name or "unknown",
        "library_name": "pytorch",
        "pipeline_tag": "image-classification",
        "tags": tags,
        "metrics": ["accuracy"],
    }
    if run.record is not None:
        result = {
            "task": {"type": "image-classification", "name": "Image Classification"},
            "dataset": {"type": run.data.lower(), "name": run.data, "split": "test"},
            "metrics": [
                {"type": kind, "name": name, "value": float(run.record[key])}
                for key, kind, name in _METRICS
                if key in run.record
            ],
        }
        front["model-index"] = [{"name": name, "results": [result]}]
    return front


def _warning(run: FinishedRun) -> str:
    stated = run.guarantee
    if math.isinf(stated.epsilon):
        said = (
            f": nothing bounds what this model reveals about a single record of {stated.private_data}** (record-level "
            "ε is infinite). It was exported anyway, by explicit request."
        )
    elif stated.epsilon > MEANINGFUL_EPSILON:
        said = (
            f" in any meaningful sense: {stated.level}-level ε = {round_up(stated.epsilon)}** (δ = {stated.delta:g}) "
            f"bounds nothing that would matter to a {stated.level} of {stated.private_data}."
        )
    else:
        return ""
    return f"> **NOT PROTECTED{said} Treat it like the private model that it was made from.\n\n"


def inline(text: str) -> str:
    """Escape a user-supplied name for the card: one line, without Markdown or HTML syntax."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(text.split()))


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
        f"**{percent(run.record['accuracy'])}** of the images of {run.data}, on {part}, at the last step of "
        "the fit: no checkpoint was chosen by it within the run. The test split is public by assumption. Expected "
        f"calibration error: {100 * run.record['calibration_error']:.1f} points, the gap between confidence and how "
        "often it is right."
    )
    if run.record["largest_share"] >= 0.99:
        text += " **It has collapsed: it assigns nearly all images to one class.**"
    lines = [inline(line) for line in judged(run.record)]
    lines[:1] = [f"**{lines[0]}**"] if useless(run.record) else lines[:1]
    text += "".join(f"\n- {line}" for line in lines).replace("\n-", "\n\n-", 1)
    if "confusion" in run.record:
        rows = zip(run.class_names, run.record["class_images"], run.record["recall"], strict=True)
        text += "\n\n| class | test images | recall |\n|---|---|---|\n" + "\n".join(
            f"| {inline(name)} | {count:,} | {percent(recall) if count else ''} |" for name, count, recall in rows
        )
        text += f"\n\n![Test images by class and answer]({CONFUSION})"
    return text
