"""What a patch is, and how it decides from the source that it finds. Standard library only: it runs in the image.

A patch is a set of edits to files below `sglang/`, each an exact text that must occur once. Its state follows from the text
alone, never from a version number:

* every edit present            -> baked (a second run changes nothing)
* the source needs none of them -> already upstream, or not needed, as the patch's own `settle` says, with evidence
* every anchor present once     -> the new text is built in memory
* anything else                 -> Refused, with file and anchor
"""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Callable, Dict, Optional, Tuple

BAKED, UPSTREAM, NOT_NEEDED, REFUSED = "baked", "already upstream", "not needed", "refused"


class Refused(Exception):
    """The source is not what the patch was cut against. `file` is relative to sglang/, `anchor` is the text in question."""

    def __init__(self, file: str, anchor: str, reason: str) -> None:
        first = next((line.strip() for line in anchor.splitlines() if line.strip()), "")
        super().__init__(f"{file}: {reason}: {first!r}")
        self.file, self.anchor, self.reason = file, anchor, reason


class Tree:
    """The sources below one sglang package, with the edits made so far laid over them; nothing is written here."""

    def __init__(self, package: pathlib.Path) -> None:
        self.package = package
        self.new: Dict[str, str] = {}
        self.read: Dict[str, Optional[str]] = {}

    def get(self, file: str) -> Optional[str]:
        """Current text, or None where there is no such file. Line ends are kept as they are."""
        if file in self.new:
            return self.new[file]
        if file not in self.read:
            path = self.package / file
            try:
                self.read[file] = path.read_bytes().decode("utf-8") if path.is_file() else None
            except UnicodeDecodeError as err:
                raise Refused(file, "", f"not UTF-8 ({err.reason})") from None
        return self.read[file]

    def text(self, file: str) -> str:
        found = self.get(file)
        if found is None:
            raise Refused(file, file, "no such file")
        return found

    def mentions(self, folder: str, word: str) -> Tuple[str, ...]:
        """Files below a folder that contain a word, sorted."""
        hits = []
        for path in sorted((self.package / folder).rglob("*.py")):
            name = path.relative_to(self.package).as_posix()
            if word in (self.get(name) or ""):
                hits.append(name)
        return tuple(hits)


@dataclasses.dataclass(frozen=True)
class Edit:
    """Replace one text by another. With several (old, new) variants exactly one old text must occur, once."""

    file: str
    variants: Tuple[Tuple[str, str], ...]

    def state(self, text: str) -> Optional[Tuple[str, str]]:
        """None where the edit is present; the variant to apply otherwise."""
        present = {new: text.count(new) for _, new in self.variants}
        done, todo = sum(present.values()), []
        for old, new in self.variants:
            todo += [(old, new)] * (text.count(old) - present[new] * new.count(old))
        if done == 1 and not todo:
            return None
        if done == 0 and len(todo) == 1:
            return todo[0]
        reason = f"anchor found {len(todo)} times, expected once" if not done else f"edit found {done} times beside {len(todo)} unedited anchors"
        raise Refused(self.file, self.variants[0][0], reason)


@dataclasses.dataclass(frozen=True)
class Need:
    """A text that the patch relies on: it must occur, exactly `count` times where a count is given.

    `elsewhere` names (file, text) pairs that serve as well, for code that has moved between the bases.
    """

    file: str
    text: str
    why: str
    count: Optional[int] = None
    elsewhere: Tuple[Tuple[str, str], ...] = ()

    def check(self, tree: Tree) -> None:
        if any(text in (tree.get(file) or "") for file, text in self.elsewhere):
            return
        found = tree.text(self.file).count(self.text)
        if found == 0 or (self.count is not None and found != self.count):
            wanted = "at least once" if self.count is None else f"{self.count} times"
            raise Refused(self.file, self.text, f"precondition found {found} times, expected {wanted} ({self.why})")


@dataclasses.dataclass(frozen=True)
class Settled:
    """The source needs no edit: `status` is UPSTREAM or NOT_NEEDED, `evidence` says what shows it."""

    status: str
    evidence: str


@dataclasses.dataclass(frozen=True)
class Patch:
    """One subject. `markers` maps a file to a name or string constant that its bytecode must carry afterwards."""

    edits: Tuple[Edit, ...]
    needs: Tuple[Need, ...]
    markers: Dict[str, str]
    evidence: str
    settle: Optional[Callable[[Tree], Optional[Settled]]] = None

    @property
    def files(self) -> Tuple[str, ...]:
        return tuple(dict.fromkeys(edit.file for edit in self.edits))


@dataclasses.dataclass
class Result:
    """What one patch comes to on one tree; `texts` are the new texts, empty where nothing changes."""

    status: str
    evidence: str
    texts: Dict[str, str] = dataclasses.field(default_factory=dict)


def resolve(patch: Patch, tree: Tree) -> Result:
    """Decide one patch from the source; raises Refused. Nothing is written and the tree is left as it was."""
    if all(tree.get(file) is not None for file in patch.files) and _present(patch, tree):
        for need in patch.needs:
            need.check(tree)
        return Result(BAKED, patch.evidence)
    if patch.settle is not None:
        settled = patch.settle(tree)
        if settled is not None:
            return Result(settled.status, settled.evidence)
    for need in patch.needs:
        need.check(tree)
    texts: Dict[str, str] = {}
    half = [edit for edit in patch.edits if edit.state(tree.text(edit.file)) is None]
    if half:
        missing = next(edit for edit in patch.edits if edit not in half)
        raise Refused(missing.file, missing.variants[0][0], f"half applied: {len(half)} of {len(patch.edits)} edits present, this one is missing")
    for edit in patch.edits:
        text = texts.get(edit.file, tree.text(edit.file))
        variant = edit.state(text)
        if variant is None:
            raise Refused(edit.file, edit.variants[0][0], "two edits of the patch overlap")
        texts[edit.file] = text.replace(variant[0], variant[1], 1)
    for file, text in texts.items():
        if patch.markers[file] not in text:
            raise Refused(file, patch.markers[file], "marker missing from the new text")
        try:
            compile(text, file, "exec", dont_inherit=True)
        except SyntaxError as err:
            raise Refused(file, str(err.text), f"the new text does not compile (line {err.lineno})") from None
    return Result(BAKED, patch.evidence, texts)


def _present(patch: Patch, tree: Tree) -> bool:
    try:
        return all(edit.state(tree.text(edit.file)) is None for edit in patch.edits)
    except Refused:
        return False
