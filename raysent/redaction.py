"""Users, passwords and tokens of addresses are taken out of what is written or printed.

A command line, the target of a tracker and the values of a space may name `https://USER:PASSWORD@HOST` or
`https://HOST?token=TOKEN`. A run folder is copied, shared and shown, so its files, warnings and printed lines have the
address alone: `https://HOST`. Libraries take what is missing from their own environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SCHEME = r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]*://)"
# A quotation mark ends an address only where a list or a text may end after it: passwords may have one inside.
_QUOTE = r"[\"'](?![\s,\])}]|$)"
# Longer than any token; a bound keeps the search of a long text short.
_LENGTH = "{0,2048}"
_USER = re.compile(rf"{_SCHEME}(?:[^\s/?#\"'<>]|{_QUOTE}){_LENGTH}@")
# Passwords with `/`, `?` or `#`, which an address must not have and people write: what follows `:` is then no port.
_USER_WITH_SLASH = re.compile(
    rf"{_SCHEME}[^\s/?#\"'<>@\[\]:]*:(?!\d*(?:[/?#\s\"'<>,;)\]}}]|$))(?:[^\s\"'<>]|{_QUOTE}){_LENGTH}@"
)
_SECRET_NAMES = (
    r"[\w.\-]*(?:token|secret|passw|passphrase|pwd|api_?-?key|access_?-?key|credential|signature)[\w.\-]*"
    r"|auth|authorization|key|login|odbc_connect|pass|sig|uid|user|username"
)
_PARAMETER = re.compile(
    rf"(?P<mark>[?&#])(?:{_SECRET_NAMES})=(?:[^\s&#\"'<>:,;]|[:,;](?!\s|$)|{_QUOTE})*",
    re.IGNORECASE,
)
_NO_PARAMETER_LEFT = re.compile(r"\?(?=[\s:;#\"'<>,)\]}]|$)")


def without_secrets(text: str) -> str:
    """Return text whose addresses have no user, no password and no parameter that is named like a secret."""
    if "://" not in text and "=" not in text:
        return text
    if "@" in text:
        text = _USER.sub(r"\g<scheme>", text)
        text = _USER_WITH_SLASH.sub(r"\g<scheme>", text)
    if _PARAMETER.search(text) is None:
        return text
    text = _PARAMETER.sub(lambda match: match["mark"] if match["mark"] == "?" else "", text)
    return _NO_PARAMETER_LEFT.sub("", text.replace("?&", "?"))


def without_secrets_in(values: Any) -> Any:
    """Return plain values, such as those of a space, with every text without secrets."""
    if isinstance(values, str):
        return without_secrets(values)
    if isinstance(values, Mapping):
        return {
            without_secrets_in(name): without_secrets_in(content)
            for name, content in values.items()
        }
    if isinstance(values, list | tuple):
        return [without_secrets_in(content) for content in values]
    return values
