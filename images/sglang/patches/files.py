"""Replace several files at once, or none of them. Standard library only: it runs in the image."""
from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import tempfile
from typing import Dict, Iterable, Iterator, List, Tuple

PREFIX = ".infera-"


class WriteError(Exception):
    """Nothing was changed; the text names the file and why."""


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """One applier at a time on a folder; a second one waits."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sweep(folders: Iterable[pathlib.Path]) -> None:
    """Remove what a killed run left beside the files. Call it under the lock."""
    for folder in set(folders):
        for left in folder.glob(PREFIX + "*"):
            with contextlib.suppress(OSError):
                left.unlink()


def replace_all(texts: Dict[pathlib.Path, str]) -> None:
    """Write each text beside its file, then move all into place. Raises WriteError after every file was put back.

    A file is complete at every moment: a run that is killed leaves old and new files, and the next one does the rest.
    """
    staged: List[Tuple[pathlib.Path, pathlib.Path, pathlib.Path]] = []
    scratch: List[pathlib.Path] = []
    moved: List[Tuple[pathlib.Path, pathlib.Path]] = []
    try:
        for path, text in texts.items():
            handle, name = tempfile.mkstemp(prefix=PREFIX, dir=path.parent)
            new, old = pathlib.Path(name), pathlib.Path(name + ".old")
            scratch += [new, old]
            with os.fdopen(handle, "wb") as out:
                out.write(text.encode("utf-8"))
            os.chmod(new, path.stat().st_mode & 0o7777)
            # Putting back must not need space, and keeps the time that a cached module was compiled for.
            os.link(path, old)
            staged.append((path, new, old))
        for path, new, old in staged:
            os.replace(new, path)
            moved.append((path, old))
    except BaseException as err:
        for path, old in moved:
            os.replace(old, path)
        if isinstance(err, OSError):
            raise WriteError(f"{err.strerror}: {err.filename}; every file was put back") from None
        raise
    finally:
        for left in scratch:
            left.unlink(missing_ok=True)
