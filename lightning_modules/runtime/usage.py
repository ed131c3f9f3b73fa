"""What the parser has to say, in the user's words: which setting, what was given, what is allowed, what was meant."""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser
from lightning.pytorch.cli import LightningArgumentParser

__all__ = ["OptionParser", "UsageParser", "explain", "nearest", "unknown_command"]

# What jsonargparse says of its own workings, line by line.
_NOISE = re.compile(
    r"Does not validate against any of the Union|Subtypes: |Errors:$|Given value|Expected a <class 'NoneType'>"
    r"|Expected a path but .* either not accessible or invalid$"
)
_KEY = re.compile(r'Parser key "(?P<key>[^"]+)":\s*(?P<rest>.*)$')
_CLASS = re.compile(r"Problem with given class_path '(?P<name>[^']+)':\s*(?P<rest>.*)$")
_NO_CLASS = re.compile(r"Expected a dot import path string: (?P<given>.+)$")
_OTHER_CLASS = re.compile(r"Import path \S+ does not correspond to a subclass of ")
_SUBTYPE = re.compile(r"<class '(?P<path>[\w.]+)'>|\[\.\.\., (?P<returned>[\w.]+)\]")
_NO_SETTING = re.compile(r"(?:unrecognized arguments: )--(?P<given>[^\s=]+)")
_NO_OPTION = re.compile(r"Option '(?P<given>[^']+)' is not accepted(?:.*class_path='(?P<name>[^']+)')?")
_NO_KEY = re.compile(r"Key '(?P<given>[^']+)' is not expected")
_KIND = re.compile(r"Expected a <class '(?P<kind>\w+)'>(?:\. Got value: (?P<given>.*))?$")
_CHOICE = re.compile(r"Expected a typing\.Literal\[(?P<allowed>.*)\]\. Got value: (?P<given>.*)$")
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}


class UsageParser(LightningArgumentParser):
    """Ends with one line that names the setting; takes no abbreviated options, which a new setting would change."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Says what was wrong and exits with status 2; raises instead where jsonargparse is to be debugged."""
        from jsonargparse._common import debug_mode_active

        if debug_mode_active() or not self.exit_on_error:
            super().error(message, ex)
        known = [option.lstrip("-") for option in self._option_string_actions if option.startswith("--")]
        sys.stderr.write(f"error: {explain(message, known=known)}\n")
        self.exit(2)


class OptionParser(argparse.ArgumentParser):
    """For commands of this project: as `UsageParser`, one line that names the option, and no abbreviations."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Says what was wrong and exits with status 2."""
        sys.stderr.write(f"error: {self._said(message)} ({self.prog} --help lists the options)\n")
        self.exit(2)

    def require_known(self, given: Sequence[str], *, also: Sequence[str] = ()) -> None:
        """Exits with the nearest option where one is given that there is none of.

        Args:
            given: What was left of the arguments.
            also: Options that somebody else takes, without dashes; those with dots always are somebody else's.
        """
        for one in given:
            name = one.partition("=")[0]
            if name.startswith("--") and "." not in name and name.removeprefix("--") not in also:
                self.error(f"unrecognized arguments: {name}")

    def _said(self, message: str) -> str:
        if match := re.match(r"unrecognized arguments: (-\S+)", message):
            name = match[1].partition("=")[0]
            return f"there is no option {name}{nearest(name, self._option_string_actions)}"
        if match := re.match(r"argument (\S+): invalid (\w+) value: (.*)$", message):
            return f"{match[1]} must be {_KINDS.get(match[2], match[2])}, got {match[3].strip(chr(39))}"
        return re.sub(r"^the following arguments are required: (.*)$", r"\1 must be given", message)


def nearest(given: str, allowed: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing where no name is near.

    >>> nearest("SmalCNN", ["ResNet18", "SmallCNN"])
    ' (did you mean SmallCNN?)'
    >>> nearest("x", ["ResNet18", "SmallCNN"])
    ''
    """
    by_lower = {name.lower(): name for name in allowed}
    found = difflib.get_close_matches(given.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[found[0]]}?)" if found else ""


def unknown_command(given: str, commands: Iterable[str]) -> str:
    """What is said of a command that there is none of.

    >>> unknown_command("fti", ["fit", "test"])
    'there is no command fti (did you mean fit?); commands are fit, test'
    """
    listed = sorted(commands)
    return f"there is no command {given}{nearest(given, listed)}; commands are {', '.join(listed)}"


def explain(message: str, *, known: Iterable[str] = ()) -> str:
    """One line out of what jsonargparse says in many.

    Args:
        message: Of an error of parsing or of building what was parsed.
        known: Options of the parser itself.

    >>> explain('''Parser key "trainer.max_epochs":
    ...   Errors:
    ...     - Expected a <class 'int'>
    ...     - Expected a <class 'NoneType'>
    ...   Given value type: <class 'str'>
    ...   Given value: abc''')
    'trainer.max_epochs must be a whole number, got abc'
    """
    known = list(known)
    lines = [line for line in message.splitlines() if line.strip()]
    keys: list[tuple[int, str]] = []
    classes: list[tuple[int, str]] = []
    bases: list[str] = []
    found: list[str] = []
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip(" "))
        text = line.strip().removeprefix("- ")
        if text.startswith("Subtypes: "):
            bases = [one["path"] or one["returned"] for one in _SUBTYPE.finditer(text)]
        while True:  # a key, or a class, may be followed by its error on the same line
            key, named = _KEY.match(text), _CLASS.match(text)
            if key is not None:
                keys = [one for one in keys if one[0] < depth] + [(depth, key["key"])]
                text = key["rest"]
            elif named is not None:
                classes = [one for one in classes if one[0] < depth] + [(depth, named["name"])]
                text = named["rest"]
            else:
                break
        if not text or _NOISE.search(text):
            continue
        setting = ".".join(name for _, name in keys)
        inside = classes[-1][1] if classes else None
        said = _said(text, setting, inside=inside, bases=bases, given=_given(lines[number:]), known=known)
        if said not in found:
            found.append(said)
    # What a subtype of a union lacks says less than what was wrong inside of it, and that a class is none of another
    # says nothing where one that it may be was tried.
    better = [one for one in found if not _OTHER_CLASS.search(one)]
    better = [one for one in better if " must be " not in one or " or " not in one] or better
    return "; ".join(_merged(better or found)) or " ".join(message.split())


def _said(text: str, setting: str, *, inside: str | None, bases: list[str], given: str | None, known: list[str]) -> str:
    whose = f"{setting}: " if setting else ""
    if match := _NO_CLASS.search(text):
        name = match["given"]
        return f"{setting or 'class_path'}: there is no class {name}{nearest(name, _names_of_classes(bases))}"
    if match := _NO_SETTING.search(text) or _NO_KEY.search(text):
        name = match["given"].removesuffix("+")
        allowed = _settings_of(inside) if inside else known
        full = ".".join(filter(None, (setting, name)))
        return f"there is no setting {full}{_nearest_setting(name, allowed, under=setting)}{_of(inside)}"
    if match := _NO_OPTION.search(text):
        name = match["given"]
        allowed = _settings_of(match["name"]) if match["name"] else _settings_below(bases)
        near = _nearest_setting(name, allowed, under=setting)
        return f"there is no setting {setting}.{name}{near}{_of(match['name'])}"
    if match := _CHOICE.search(text):
        allowed = [one.strip(" '\"") for one in match["allowed"].split(",")]
        near = nearest(match["given"], allowed)
        return f"{setting} must be one of {', '.join(allowed)}, got {match['given']}{near}"
    if match := _KIND.search(text):
        kind = _KINDS.get(match["kind"], match["kind"])
        return f"{setting} must be {kind}, got {match['given'] or given}"
    # What a constructor says names its own argument.
    text = re.sub(r"^Type .* expects a function or a callable class: ", "", text)
    return text if setting in ("", "model", "data", "trainer") else f"{whose}{text}"


def _merged(found: list[str]) -> Iterator[str]:
    """Several kinds that one setting may be of, in one sentence."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for one in found:
        match = re.match(r"(\S+) must be (.+), got (.*)$", one)
        if match is None or match[2].startswith(("one of", "an integer")):
            yield one
        else:
            kinds.setdefault((match[1], match[3]), []).append(match[2])
    for (setting, given), allowed in kinds.items():
        yield f"{setting} must be {' or '.join(allowed)}, got {given}"


def _given(lines: list[str]) -> str | None:
    """The value that the error is about, as the lines after it have it."""
    for line in lines:
        if line.strip().startswith("Given value: "):
            return line.strip().removeprefix("Given value: ")
    return None


def _of(name: str | None) -> str:
    return f" in {name.rpartition('.')[2]}" if name else ""


def _nearest_setting(given: str, allowed: list[str], *, under: str) -> str:
    near = difflib.get_close_matches(given, allowed, n=1, cutoff=0.8 if "." in given else 0.6)
    if not near and "." in given:
        # A group that is spelt wrong is said with its setting as it was given.
        group, _, rest = given.partition(".")
        groups = {name.partition(".")[0] for name in allowed}
        near = [f"{one}.{rest}" for one in difflib.get_close_matches(group, groups, n=1, cutoff=0.6)]
    return f" (did you mean {'.'.join(filter(None, (under, near[0])))}?)" if near else ""


def _settings_of(class_path: str) -> list[str]:
    """Names of a class's settings, those of groups with dots."""
    try:
        found = _imported(class_path)
        if not inspect.isclass(found):
            return list(inspect.signature(found).parameters)
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(found, fail_untyped=False)
    except Exception:  # a class that cannot be described has no names to offer
        return []
    return [
        option.lstrip("-")
        for option in parser._option_string_actions
        if option.startswith("--") and not option.endswith(".help")
    ]


def _settings_below(bases: list[str]) -> list[str]:
    """Settings of every class of this project that derives from one of `bases`, where it is not said which is meant."""
    ours = ("datamodules", "lightning_modules", "privacy")
    classes = [one for one in _classes(bases) if one.__module__.startswith(ours)]
    return sorted({name for one in classes for name in inspect.signature(one).parameters})


def _imported(path: str) -> type:
    module, _, name = path.rpartition(".")
    found: type = getattr(importlib.import_module(module), name)
    return found


def _classes(bases: list[str]) -> set[type]:
    """Loaded classes that derive from one of `bases`, dotted paths; all that a setting may name if there is none."""
    left: list[type] = []
    for base in bases or _ROOTS:
        try:
            left.append(_imported(base))
        except (ImportError, AttributeError, ValueError):
            continue
    found: set[type] = set()
    while left:
        one = left.pop()
        if inspect.isclass(one) and one not in found and one is not type(None):
            found.add(one)
            left += one.__subclasses__()
    return found


def _names_of_classes(bases: list[str]) -> set[str]:
    """Their names, without what is internal or cannot be built."""
    return {one.__name__ for one in _classes(bases) if not one.__name__.startswith("_") and not inspect.isabstract(one)}


_ROOTS = (
    "lightning.LightningModule",
    "lightning.LightningDataModule",
    "lightning.Callback",
    "lightning.pytorch.loggers.logger.Logger",
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler",
    "privacy.annotators.base.Annotator",
)
