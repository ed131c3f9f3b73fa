"""Top-level error handling: one line for errors that the user can fix, a traceback for bugs."""

from __future__ import annotations

import importlib
import re
import signal
import traceback
from collections.abc import Mapping
from typing import Any

from privacy.checks import did_you_mean

_PACKAGES = ("lightning_modules", "datamodules", "privacy", "sweeps")

# jsonargparse's messages about its own workings, line by line.
_NOISE = re.compile(
    r"Does not validate against any|Subtypes: |Errors:$|Given value|Expected a <class 'NoneType'>|Expected a path but"
    r"|Problem with given class_path '[^']+':$|Parser key \"[^\"]+\":$|does not correspond to a subclass of"
    r"|Module\.__init__\(\) got an unexpected"
)
_WORDS = (
    (r"^Type .* expects a function or a callable class: ", ""),
    (r"^(?:Problem with given class_path '[^']+':|Parser key \"[^\"]+\":) *", ""),
    (r"^Expected a <class '(?:\w+\.)*(\w+)'>", r"must be \1"),
    (r"^Expected a typing\.Literal\[(.*)\]", r"must be one of \1"),
    (r"^Expected a dot import path string: (\S+)", r"there is no class \1 that fits here"),
    (r"^Unexpected import path format: (\S+)", r"there is no class \1 (networks of others: External, with its name)"),
    (
        r"^Expected '([^']+)' to be a function that returns <class 'ImageClassifier'>.*",
        r"there is no class \1 that fits here (networks of others: External, with its name)",
    ),
    (r"\. Got value: (?:Namespace|NestedArg).*", ""),
    (r"\. Got value: ", ", got "),
)
_UNKNOWN = re.compile(
    r"^unrecognized arguments: --([^\s=]+)|^(?:Option|Key) '([^']+)' is not (?:accepted|expected)"
    r"|^Group '([^']+)' does not accept option '([^']+)'|^Subcommand '[^']+' does not accept option '([^']+)'"
)
_OF_BASES = {"defaults", "last_epoch"}
"""Settings of torch's base classes, which stand where no class was chosen yet."""


def expected(error: Exception) -> bool:
    """Whether the user can fix the cause: a value, a setting, a file, a missing package or device."""
    kinds = (OSError, ValueError)
    return _ours(error) or isinstance(error, kinds) or type(error).__name__ == "MisconfigurationException"


def _ours(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _PACKAGES


def unknown_setting(message: str, known: Mapping[str, Any]) -> str:
    """Says of jsonargparse's message about a setting which of the `known` ones, with their types, may be meant.

    >>> unknown_setting("unrecognized arguments: --images.sorce=prior", {"images.source": str, "student.network": None})
    'there is no setting images.sorce: did you mean images.source (str)?'
    """
    if (found := _UNKNOWN.search(message)) is None:
        return message
    name = ".".join(filter(None, found.groups()))
    if known.keys() - {"help"} and known.keys() - {"help"} <= _OF_BASES:
        return f"there is no setting {name} yet: choose the class first"
    return f"there is no setting {name}{did_you_mean(name, known)}"


def _classes() -> dict[str, None]:
    """Names that a setting of a class may have."""
    places = "datamodules lightning_modules lightning_modules.networks lightning_modules.priors privacy.mechanisms "
    places += "torch.optim torch.optim.lr_scheduler lightning.pytorch.callbacks lightning.pytorch.loggers"
    modules = map(importlib.import_module, places.split())
    names = (name for module in modules for name in getattr(module, "__all__", dir(module)))
    return dict.fromkeys(name for name in names if name[0].isupper())


def message_of(error: Exception) -> str:
    """Describes an error in one line, without internals of libraries, with a hint to --debug if that may show more.

    >>> message_of(ValueError("bad value"))
    'bad value (--debug shows where)'
    """
    text = str(error).strip() or type(error).__name__
    if _ours(error):
        return text
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    if "Union subtypes" in text or "Parser key" in text:
        return explain(text)
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, ValueError) and frames and any(f"/{one}/" in frames[-1].filename for one in _PACKAGES):
        return text  # it names the argument already
    text = text.replace(" or switch to automatic optimization", "")  # which is not the user's to choose
    return f"{' '.join(text.split())} (--debug shows where)"


def explain(message: str) -> str:
    """Reduce an error message of jsonargparse to one line.

    >>> explain('''Parser key "trainer.max_epochs":
    ...   Errors:
    ...     - Expected a <class 'int'>
    ...     - Expected a <class 'NoneType'>
    ...   Given value type: <class 'str'>
    ...   Given value: abc''')
    'trainer.max_epochs must be int, got abc'
    """
    setting = ".".join(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message)))
    values = re.findall(r"Given value: (?!Namespace|NestedArg)(.*)", message)
    found: dict[str, None] = {}
    for line in message.splitlines():
        text = line.strip().removeprefix("- ")
        if text and not _NOISE.search(text):
            for pattern, words in _WORDS:
                text = re.sub(pattern, words, text)
            if missing := re.match(r"there is no class (\S+) that fits here$", text):
                text += did_you_mean(missing[1], _classes())
            found[text] = None
    if classes := [text for text in found if text.startswith("there is no class")]:
        found = dict.fromkeys(classes)  # that it is no number either needs no word
    said = []
    for text in found:
        if text.startswith("must be ") and ", got " not in text and values:
            text += f", got {values[0]}"
        # A constructor's own message names its argument.
        said.append(f"{setting} {text}" if text.startswith("must ") else text)
    whole = "; ".join(said) or " ".join(message.split())
    return f"{setting}: {whole}" if setting and "there is no" in whole else whole


def exit_status(error: BaseException) -> int | str | None:
    """Exit status of a process: 128 plus the signal's number if a signal ended it, as in shells.

    Lightning ends with 0 after SIGTERM and with 1 after SIGINT, once callbacks have saved.

    >>> exit_status(KeyboardInterrupt()), exit_status(SystemExit(2))
    (130, 2)
    """
    if type(error).__name__ == "SIGTERMException":  # Lightning's, which takes seconds to import
        return 128 + signal.SIGTERM
    if isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.code if isinstance(error, SystemExit) else 1
