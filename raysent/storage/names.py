"""Names that users and strangers gave -> names of files and folders, by one rule for every system and for buckets.

A name is safe if it stays inside its folder on Linux, macOS, Windows and in a bucket, is seen in a listing, and leaves
room for what is written around it.
"""

from __future__ import annotations

import re
import unicodedata
from hashlib import sha256
from pathlib import Path

from raysent.errors import ArtifactError, DataError, RaysentError
from raysent.storage.mirror import address_of

# A file's name has at most 255 bytes. A suffix and the marks of a temporary file need the other ones.
MAX_NAME_BYTES = 231
_HASH_DIGITS = 8
_SHOWN_CHARACTERS = 60

# Separators of folders and drives, and what Windows keeps for itself.
_RESERVED_CHARACTERS = frozenset('/\\<>:"|?*')
# Devices of Windows, which no ending makes a file.
_RESERVED_NAMES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])(\..*)?", re.I)
# Control characters, invisible ones and halves of surrogate pairs; then ends of lines and of paragraphs.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Invisible characters that Persian and the scripts of India are written with.
_JOINERS = frozenset("\u200c\u200d")


def is_safe_name(name: str) -> bool:
    """Return whether a name can be that of a file or a folder on every system, as it is."""
    return (
        name == name.strip()
        and name[:1] not in ("", ".")
        and name[-1:] != "."
        and not any(map(_is_unsafe, name))
        and _RESERVED_NAMES.fullmatch(name) is None
        and _num_bytes(name) <= MAX_NAME_BYTES
    )


def safe_name(text: str, *, max_bytes: int = MAX_NAME_BYTES) -> str:
    """Return a safe name for a text; two texts have two names, and a safe text without ``%`` is its own.

    Unsafe characters and ``%`` become ``%`` and the digits of their bytes, as in addresses of the web. What is too long
    is cut, and ends in a hash of the whole.

    Args:
        text: The text.
        max_bytes: The largest size of the name.
    """
    parts = [_escaped(sign) if sign == "%" or _is_unsafe(sign) else sign for sign in text]
    if text[:1] == "." or text[:1].isspace() or _RESERVED_NAMES.fullmatch(text):
        parts[0] = _escaped(text[0])
    if text[-1:] == "." or text[-1:].isspace():
        parts[-1] = _escaped(text[-1])
    return shortened_name("".join(parts) or "%", max_bytes)


def shortened_name(name: str, max_bytes: int) -> str:
    """Return a name that is not longer than a number of bytes: cut, and with a hash of the whole at its end."""
    if _num_bytes(name) <= max_bytes:
        return name
    digest = sha256(name.encode(errors="surrogatepass")).hexdigest()[:_HASH_DIGITS]
    room = max_bytes - len(digest) - 1
    return f"{name.encode(errors='replace')[:room].decode(errors='ignore')}-{digest}"


def check_name(name: str, *, where: str, error: type[RaysentError] = DataError) -> None:
    """Refuse a name that is not of one file or folder.

    Args:
        name: The name, which may be a stranger's.
        where: The file or folder that has it, for the message.
        error: Class of the error.

    Raises:
        RaysentError: If the name would lead out of its folder, or is none.
    """
    if name in ("", ".", "..") or set(name) & {"/", "\\", "\0"}:
        raise error(
            f"{where}: a name in it must be without / and \\, and not be . or ..; "
            f"given {shown_name(name)}; rename it"
        )


def path_below(folder: Path, name: str) -> Path:
    """Return the path of a name in a folder; the name may be a stranger's.

    Raises:
        ArtifactError: As `check_name`.
    """
    check_name(name, where=address_of(folder), error=ArtifactError)
    return folder / name


def shown_name(name: str) -> str:
    """Return a name for a message: short, in quotation marks, with escapes for what is not printed."""
    if len(name) <= _SHOWN_CHARACTERS:
        short = name
    else:
        short = f"{name[: _SHOWN_CHARACTERS - 1]}…"
    return repr(short)


def _is_unsafe(sign: str) -> bool:
    is_hidden = unicodedata.category(sign) in _HIDDEN_CATEGORIES and sign not in _JOINERS
    return is_hidden or sign in _RESERVED_CHARACTERS


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode(errors="surrogatepass"))


def _num_bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))
