"""One mechanism for the flags of both commands: flag beats environment beats default; an empty variable counts as unset.

A wrong value ends the command with exit status 2 and one line that names the option, and the variable where the value came from it.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

Convert = Callable[[str], Any]


def text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def integer(minimum: int | None = None, maximum: int | None = None) -> Convert:
    """A whole number within the bounds, both included."""

    def convert(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("is not a whole number") from None
        _bounds(number, minimum, maximum)
        return number

    return convert


def number(minimum: float | None = None, maximum: float | None = None) -> Convert:
    """A finite number within the bounds, both included; NaN and infinities are refused."""

    def convert(value: str) -> float:
        try:
            result = float(value)
        except ValueError:
            raise ValueError("is not a number") from None
        if not math.isfinite(result):
            raise ValueError("is not a finite number")
        _bounds(result, minimum, maximum)
        return result

    return convert


def seconds(minimum: float = 0.0, maximum: float | None = None) -> Convert:
    """A duration in seconds."""
    return number(minimum, maximum)


def choice(*names: str) -> Convert:
    def convert(value: str) -> str:
        if value not in names:
            raise ValueError(f"is none of {', '.join(names)}")
        return value

    return convert


def switch(value: str) -> bool:
    """on or off; also 1/0, true/false, yes/no, as environments tend to be written."""
    lowered = value.strip().lower()
    if lowered in ("on", "1", "true", "yes"):
        return True
    if lowered in ("off", "0", "false", "no"):
        return False
    raise ValueError("is neither on nor off")


def file(value: str) -> str:
    """A path to a file that can be read now."""
    try:
        with open(value, "rb"):
            return value
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def _bounds(value: float, minimum: float | None, maximum: float | None) -> None:
    if minimum is not None and value < minimum:
        raise ValueError(f"is less than {minimum:g}")
    if maximum is not None and value > maximum:
        raise ValueError(f"is more than {maximum:g}")


@dataclass(frozen=True, slots=True)
class Option:
    """One flag with its variable.

    *flag* starts with ``--``; *env* defaults to ``INFERA_`` plus the flag's name, None takes no variable. A *repeat* option gives a
    tuple, from repeated flags or from a comma-separated variable. A *bare* option may stand without a value and is then True.
    *convert* turns text into the value and raises ValueError with the rest of the sentence "<option> <value> ...".
    """

    flag: str
    help: str
    convert: Convert = text
    default: Any = None
    metavar: str | None = None
    env: str | None = ""
    repeat: bool = False
    bare: bool = False
    group: str = "options"

    @property
    def dest(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str | None:
        return "INFERA_" + self.dest.upper() if self.env == "" else self.env

    def shown_default(self) -> str:
        if self.default is None or self.default == ():
            return "none"
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)


class UsageError(Exception):
    """Raised by ``OptionSet.read`` where ``OptionSet.parse`` would end the process; the text is the message."""


class OptionSet:
    """The options of one command, in the order of its help."""

    def __init__(self, prog: str, options: Iterable[Option], description: str = "", usage: str | None = None,
                 epilog: str | None = None, version: str | None = None) -> None:
        self.prog = prog
        self.options = tuple(options)
        self._parser = _Parser(prog=prog, description=description, usage=usage, epilog=epilog, allow_abbrev=False,
                               formatter_class=argparse.RawDescriptionHelpFormatter)
        if version is not None:
            self._parser.add_argument("--version", action="version", version=f"{prog} {version}")
        groups: dict[str, Any] = {}
        for option in self.options:
            group = groups.get(option.group)
            if group is None:
                group = groups[option.group] = self._parser.add_argument_group(option.group)
            group.add_argument(option.flag, dest=option.dest, help=_help(option).replace("%", "%%"), default=None,
                               action="append", metavar=option.metavar or _metavar(option),
                               **({"nargs": "?", "const": None} if option.bare else {}))

    def parse(self, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> argparse.Namespace:
        """Values by ``dest``; prints help and exits 0, or prints the fault and exits 2, as command lines do."""
        try:
            return self.read(argv, environ)
        except UsageError as error:
            self.fail(str(error))

    def read(self, argv: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> argparse.Namespace:
        """As ``parse``, but a fault is raised as UsageError."""
        environ = os.environ if environ is None else environ
        given = self._parser.parse_args(argv)
        values = argparse.Namespace()
        values.given = frozenset(option.dest for option in self.options if getattr(given, option.dest) is not None)
        for option in self.options:
            setattr(values, option.dest, self._value(option, getattr(given, option.dest), environ))
        return values

    def fail(self, message: str) -> NoReturn:
        """End the command as argparse ends it for a wrong value: one line on stderr, exit status 2."""
        self._parser.exit(2, f"{self.prog}: error: {message}\n")

    def help(self) -> str:
        return self._parser.format_help()

    def _value(self, option: Option, given: list[str | None] | None, environ: Mapping[str, str]) -> Any:
        name = option.flag
        if given is None:
            raw = environ.get(option.variable, "") if option.variable else ""
            if raw == "":
                return option.default
            name = f"{option.variable} (option {option.flag})"
            given = [part.strip() for part in raw.split(",") if part.strip()] if option.repeat else [raw]
        values = tuple(_convert(option, name, value) for value in given)
        return values if option.repeat else values[-1]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _convert(option: Option, name: str, value: str | None) -> Any:
    if value is None:
        return True
    try:
        return option.convert(value)
    except ValueError as error:
        raise UsageError(f"{name}: {value!r} {error}") from None


def _metavar(option: Option) -> str:
    return option.dest.rsplit("_", 1)[-1].upper()


def _help(option: Option) -> str:
    tail = f"default {option.shown_default()}"
    if option.variable:
        tail = f"{option.variable}{', comma-separated' if option.repeat else ''}; {tail}"
    return f"{option.help}{' (repeatable)' if option.repeat else ''} [{tail}]"


def reference(options: Iterable[Option]) -> str:
    """Markdown tables of the options, one per group, for the generated reference pages."""
    lines: list[str] = []
    group = None
    for option in options:
        if option.group != group:
            group = option.group
            lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| option | variable | default | meaning |", "| --- | --- | --- | --- |"]
        meaning = option.help.replace("|", "\\|").replace("\n", " ")
        if option.repeat:
            meaning += ". Repeatable; comma-separated in the variable"
        lines.append(f"| `{option.flag}` | {f'`{option.variable}`' if option.variable else '–'} | `{option.shown_default()}` | {meaning} |")
    return "\n".join(lines).strip() + "\n"
