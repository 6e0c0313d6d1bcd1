"""The raysent that is running, packed as a wheel, so that the cluster runs the same bytes, published or not."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import raysent
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
    package = Path(raysent.__file__).parent
    files = {
        f"raysent/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
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


def _metadata() -> str:
    """Return what the package says of itself; the file's name depends on how it was installed."""
    installed = distribution("raysent")
    found = installed.read_text("METADATA") or installed.read_text("PKG-INFO")
    if found is None:
        raise ArtifactError("raysent: its metadata are not installed; install it with pip, or 'make setup'")
    return found


def _digest(data: bytes) -> str:
    """Return a digest in the form that a wheel's RECORD has."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
