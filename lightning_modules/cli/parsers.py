"""One line out of jsonargparse's errors: which setting, what was given, what is allowed."""

from __future__ import annotations

import re

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
    (r"^Expected a dot import path string: (\S+)", r"there is no class \1"),
    (r"^unrecognized arguments: --([^\s=]+).*", r"there is no setting \1"),
    (r"^(?:Option|Key) '([^']+)' is not (?:accepted|expected).*", r"there is no setting \1"),
    (r"\. Got value: ", ", got "),
)


def explain(message: str) -> str:
    """One line out of the many of jsonargparse.

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
    if len(found) > 1:  # the short form of a group, which was not meant
        found.pop("must be str", None)
    said = []
    for text in found:
        if text.startswith("must be ") and ", got " not in text and values:
            text += f", got {values[0]}"
        # A constructor's own message names its argument.
        said.append(f"{setting} {text}" if text.startswith("must ") else text)
    whole = "; ".join(said) or " ".join(message.split())
    return f"{setting}: {whole}" if setting and "there is no" in whole else whole
