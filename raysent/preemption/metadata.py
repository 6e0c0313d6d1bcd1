"""The interruption notice of AWS, asked of the instance metadata service, version 2 (a token first, then the question).

Source: Amazon EC2 User Guide, "Spot Instance interruption notices": `spot/instance-action` answers 404 until about two
minutes before the machine is taken, then with the action and its time in UTC.
"""

from __future__ import annotations

import datetime
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass

from raysent.errors import RaysentError

_ENDPOINT = "http://169.254.169.254"
_ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_TOKEN_S = 21600
_TIMEOUT_S = 2.0


class MetadataError(RaysentError):
    """The metadata service does not answer, or not in the form that is documented."""


@dataclass(frozen=True)
class Notice:
    """That this machine will be taken.

    Attributes:
        action: `terminate`, `stop` or `hibernate`.
        time_s: When, in seconds since 1970.
    """

    action: str
    time_s: float


class InstanceMetadata:
    """The metadata service of the machine that this process runs on."""

    def __init__(self, endpoint: str | None = None) -> None:
        """Talk to `endpoint`; by default what AWS_EC2_METADATA_SERVICE_ENDPOINT says, else AWS's own address."""
        self.endpoint = (endpoint or os.environ.get(_ENDPOINT_VARIABLE) or _ENDPOINT).rstrip("/")
        self._token = ""
        # The service is on the machine itself: whatever proxy the user has must not be asked.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def notice(self) -> Notice | None:
        """Return the interruption notice; None where there is none.

        Raises:
            MetadataError: If the service does not answer, or its answer cannot be read.
        """
        text = self._get("spot/instance-action")
        return None if text is None else _read_notice(text)

    def _get(self, name: str) -> str | None:
        """Return a value, None where the service says 404; a token that has run out is renewed once."""
        for is_last in (False, True):
            headers = {"X-aws-ec2-metadata-token": self._token or self._new_token()}
            try:
                return self._ask(f"latest/meta-data/{name}", headers=headers)
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401 or is_last:
                    raise MetadataError(f"{self.endpoint}: must answer for {name}; it says {error.code}") from None
                self._token = ""
        return None

    def _new_token(self) -> str:
        try:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}
            self._token = self._ask("latest/api/token", headers=headers, method="PUT")
        except urllib.error.HTTPError as error:
            raise MetadataError(f"{self.endpoint}: must give a token; it says {error.code}") from None
        return self._token

    def _ask(self, path: str, *, headers: dict[str, str], method: str = "GET") -> str:
        """Return the text of an answer.

        Raises:
            HTTPError: If the service refuses.
            MetadataError: If nothing answers.
        """
        request = urllib.request.Request(f"{self.endpoint}/{path}", headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                return str(answer.read(65536).decode())
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError) as error:
            raise MetadataError(f"{self.endpoint}: must answer; {error}") from None


def _read_notice(text: str) -> Notice:
    """Return what ``{"action": "terminate", "time": "2026-11-21T08:22:00Z"}`` says.

    Raises:
        MetadataError: If it is anything else.
    """
    try:
        values = json.loads(text)
        at = datetime.datetime.fromisoformat(values["time"])
        return Notice(str(values["action"]), (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp())
    except (ValueError, KeyError, TypeError):
        raise MetadataError(f"spot/instance-action: must hold an action and a time; given {text[:200]!r}") from None
