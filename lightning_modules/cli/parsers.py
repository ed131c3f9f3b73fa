"""Parsers that end in one line: which setting, what was given, what is allowed."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from lightning_modules.runtime.names import nearest

# jsonargparse's messages about its own workings, line by line.
_NOISE = re.compile(
    r"Does not validate against any|Subtypes: |Errors:$|Given value|Expected a <class 'NoneType'>|Expected a path but"
    r"|Problem with given class_path '[^']+':$|Parser key \"[^\"]+\":$|does not correspond to a subclass of"
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


class OptionParser(argparse.ArgumentParser):
    """argparse's parser for commands that build no model, with the same manners."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with status 2."""
        if match := re.match(r"unrecognized arguments: (--[^\s=]+)", message):
            message = f"there is no option {match[1]}{nearest(match[1], self._option_string_actions)}"
        sys.stderr.write(f"error: {message} ({self.prog} --help lists the options)\n")
        self.exit(2)

    def require_known(self, given: Sequence[str], *, also: Sequence[str] = ()) -> None:
        """Exits where an option is unknown.

        Args:
            given: Arguments that this parser did not take.
            also: Options of another parser, without dashes; options with dots always belong to another one.
        """
        for one in given:
            name = one.partition("=")[0]
            if name.startswith("--") and "." not in name and name.removeprefix("--") not in also:
                self.error(f"unrecognized arguments: {name}")


def explain(message: str, *, options: Iterable[str] = ()) -> str:
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
        if match := re.match(r"there is no (class|setting) (\S+)$", text):
            text += nearest(match[2], _names(match[1], options))
        elif text.startswith("must be ") and ", got " not in text and values:
            text += f", got {values[0]}"
        # A constructor's own message names its argument.
        said.append(f"{setting} {text}" if text.startswith("must ") else text)
    whole = "; ".join(said) or " ".join(message.split())
    return f"{setting}: {whole}" if setting and "there is no" in whole else whole


def _names(kind: str, options: Iterable[str]) -> set[str]:
    """Names of this project's classes; or words of options, and names of those classes' settings."""
    packages = ("datamodules", "lightning_modules", "privacy")
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in packages]
    classes = {one for module in modules for one in vars(module).values() if inspect.isclass(one)}
    ours = [one for one in classes if one.__module__.partition(".")[0] in packages and not one.__name__.startswith("_")]
    if kind == "class":
        return {one.__name__ for one in ours}
    words = {word for option in options for word in option.lstrip("-").split(".")}
    return words.union(*(inspect.signature(one.__init__).parameters for one in ours))
