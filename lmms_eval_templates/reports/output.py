"""Writes results whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..sets import TemplateError

_MARK = ".lmms-eval-templates"  # a folder with this file in it was written by us and may be replaced


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A folder to fill, which takes its place at `path` when all went well.

    A folder of an earlier report is replaced as a whole.

    Raises:
        TemplateError: `path` is a file, or holds something that no report wrote.
    """
    target = Path(path).absolute()
    if target.exists() and not (target.is_dir() and ((target / _MARK).exists() or not any(target.iterdir()))):
        raise TemplateError(f"{path}: is there already and holds no earlier report; choose another folder with -o")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise TemplateError(f"cannot write {path}: {error.strerror}; choose another folder with -o") from error
    try:
        folder.chmod(0o755)
        (folder / _MARK).touch()
        yield folder
        if target.exists():
            shutil.rmtree(target)
        folder.rename(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_file(path: str | Path, content: str) -> None:
    """Writes a text file, or leaves an earlier one as it is.

    Raises:
        TemplateError: it cannot be written.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            try:
                file.write(content)
                file.close()
                os.chmod(file.name, 0o644)
                os.replace(file.name, target)
            finally:
                Path(file.name).unlink(missing_ok=True)
    except OSError as error:
        raise TemplateError(f"cannot write {path}: {error.strerror}") from error
