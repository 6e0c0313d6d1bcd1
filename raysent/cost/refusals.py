"""Why a cloud refuses to launch a machine, in three classes that each ask for something else.

    again  the cloud has no time now: wait, and ask for the same type
    next   the cloud has none of this type: the type of the next priority takes its place for a while
    never  asking again cannot help: permission, quota, a wrong parameter

Plain texts; no cloud access.
"""

from __future__ import annotations

import re
from typing import Literal

Refusal = Literal["again", "next", "never"]

# Starts of AWS's codes. What is in neither list is a lack of machines: the next type is tried.
_AGAIN = (
    "RequestLimitExceeded",
    "Throttling",
    "RequestThrottled",
    "TooManyRequests",
    "EC2ThrottledException",
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "Unavailable",
    "RequestExpired",
    "RequestTimeout",
    "503",
    "500",
)
_NEVER = (
    "UnauthorizedOperation",
    "AccessDenied",
    "AuthFailure",
    "Blocked",
    "OptInRequired",
    "PendingVerification",
    "InvalidParameter",
    "InvalidAMIID",
    "InvalidSubnet",
    "InvalidGroup",
    "InvalidKeyPair",
    "MissingParameter",
    "InvalidClientTokenId",
    "VcpuLimitExceeded",
    "InstanceLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "SpotMaxPriceTooLow",
)
# The machines that run may be as many as the account's quota allows.
_QUOTAS = ("VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded")
# Requests that got no answer: botocore's texts.
_NO_ANSWER = re.compile(
    r"timed? ?out|timeout|could not connect|connection (was|aborted|reset|broken)|endpoint url|"
    r"max retries",
    re.IGNORECASE,
)


def refusal_of(reason: str) -> Refusal:
    """Return the class of a refusal from AWS's reason, which begins with a code."""
    code = reason.partition(":")[0].strip()
    if code.startswith(_AGAIN) or _NO_ANSWER.search(reason):
        return "again"
    return "never" if code.startswith(_NEVER) else "next"


def is_quota(reason: str) -> bool:
    """Return whether a refusal says that the account's quota is used up."""
    return reason.partition(":")[0].strip().startswith(_QUOTAS)
