"""Top-level error handling: one line for errors that the user can fix, a traceback for bugs."""

from __future__ import annotations

import re
import traceback

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
    (r"^unrecognized arguments: --([^\s=]+).*", r"there is no setting \1"),
    (r"^(?:Option|Key) '([^']+)' is not (?:accepted|expected).*", r"there is no setting \1"),
    (r"^Unexpected import path format: (\S+)", r"there is no class \1 (networks of others: External, with its name)"),
    (
        r"^Expected '([^']+)' to be a function that returns <class 'ImageClassifier'>.*",
        r"there is no class \1 that fits here (networks of others: External, with its name)",
    ),
    (r"\. Got value: ", ", got "),
)


def expected(error: Exception) -> bool:
    """Whether the user can fix the cause: a value, a setting, a file, a missing package or device."""
    kinds = (OSError, ValueError)
    return _ours(error) or isinstance(error, kinds) or type(error).__name__ == "MisconfigurationException"


def _ours(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in _PACKAGES


def message_of(error: Exception) -> str:
    """Describe an error in one line, without internals of libraries, with a hint to --debug if that may show more.

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
            found[text] = None
    said = []
    for text in found:
        if text.startswith("must be ") and ", got " not in text and values:
            text += f", got {values[0]}"
        # A constructor's own message names its argument.
        said.append(f"{setting} {text}" if text.startswith("must ") else text)
    whole = "; ".join(said) or " ".join(message.split())
    return f"{setting}: {whole}" if setting and "there is no" in whole else whole
