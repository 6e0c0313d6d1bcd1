"""Whether a submitted sweep is alive, by what is stored with its run: no head and no cloud is asked but the storage.

job.json   the record of its job: the exit code once it has ended
.lease     renewed by the sweep's process every 15 seconds while it works
"""

from __future__ import annotations

from raysent.errors import RaysentError
from raysent.reading import parse_json
from raysent.storage import is_remote
from raysent.storage.layout import JOB_FILE
from raysent.storage.lease import EXPIRY_S, lease_age_s
from raysent.storage.object_store import get_content

# A job that was just recorded may take this long until the sweep's process holds its lease.
START_S = 900.0


def is_alive(remote: str) -> bool | None:
    """Return whether the sweep of a run works now; None if the storage does not say.

    Args:
        remote: The address of the run.
    """
    if not is_remote(remote):
        return None
    try:
        record = get_content(f"{remote}/{JOB_FILE}")
        if record is None:
            return None
        values = parse_json(record.data)
        if not isinstance(values, dict) or values.get("code") is not None:
            return False
        age_s = lease_age_s(remote)
        if age_s is None:
            return record.age_s < START_S
        return age_s < EXPIRY_S
    except (RaysentError, ValueError):
        return None


def renews_lease(remote: str) -> bool:
    """Return whether the process of a run's sweep has renewed its lease just now; False if the storage does not say.

    Args:
        remote: The address of the run.
    """
    if not is_remote(remote):
        return False
    try:
        age_s = lease_age_s(remote)
    except RaysentError:
        return False
    return age_s is not None and age_s < EXPIRY_S
