"""The raysent that is running, packed as a wheel, so that the cluster runs the same bytes, published or not."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import raysent
from raysent.config import SHIPPED, shipped_path
from raysent.errors import ArtifactError

# Zip's own first day, so that the same code gives the same bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: raysent\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ENTRY_POINTS = "[console_scripts]\nraysent = raysent.cli:main\n"


def wheel_name() -> str:
    """Return the file name of the wheel."""
    return f"raysent-{raysent.__version__}-py3-none-any.whl"


def write_wheel(folder: Path) -> Path:
    """Pack the package that is running and the requirements that it was installed with.

    Args:
        folder: Where the wheel is put.
    """
    files = _files_below(Path(raysent.__file__).parent, "raysent")
    for name in SHIPPED:
        files |= _files_below(shipped_path(name), f"raysent/{name}")
    about = f"raysent-{raysent.__version__}.dist-info"
    files |= {
        f"{about}/METADATA": _metadata().encode(),
        f"{about}/WHEEL": _WHEEL.encode(),
        f"{about}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    path = folder / wheel_name()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, _WHEN), data, zipfile.ZIP_DEFLATED)
    return path


def _files_below(root: Path, name: str) -> dict[str, bytes]:
    """Return the content of a file, or of all files of a folder, by its name in the wheel."""
    if root.is_file():
        return {name: root.read_bytes()}
    return {
        f"{name}/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _metadata() -> str:
    """Return the metadata of the installed package; the name of their file depends on the installer."""
    installed = distribution("raysent")
    found = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    if found is None:
        raise ArtifactError("raysent: its metadata are not installed; install it with pip, or 'make setup'")
    if installed.version != raysent.__version__:
        raise ArtifactError(
            f"raysent: its metadata must be those of {raysent.__version__}; given {installed.version}; install it again"
        )
    return found


def _digest(data: bytes) -> str:
    """Return a digest in the form that a wheel's RECORD has."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
