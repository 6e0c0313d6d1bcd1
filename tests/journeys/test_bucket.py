"""A sweep whose run folder is in a bucket: killed on one machine, resumed from another place."""

from __future__ import annotations

import json
import os
import signal

import pytest
from installed import User
from material import write_books, write_reviews

pytestmark = pytest.mark.cluster


@pytest.mark.journey
def test_run_in_a_bucket_is_resumed_elsewhere(
    user, environment_with_extras, bucket, tmp_path, until
):
    """What one user's killed sweep left in the bucket is continued by another with the same text; no trial is lost."""
    sweep = [
        "sweep",
        "quick_thoughts",
        "--corpus",
        "books/",
        "--run",
        "s3://store/first",
        "--trials=3",
        "--yes",
        "--task",
        "reviews.csv",
        "--set",
        "evaluation.baselines=false",
    ]
    settings = [
        "encoder.hidden_size=16",
        "encoder.embedding.dim=16",
        "training.batch_size=50",
        "training.epochs=20",
    ]
    settings += [
        "training.num_reports=10",
        "vocabulary.size=200",
        "validation={num_candidates: 20, num_sentences: 60}",
    ]
    user.run(
        "python", "-c", "import boto3; boto3.client('s3').create_bucket(Bucket='store')", **bucket
    )
    killed = user.start(*sweep, *(f"--set={one}" for one in settings), **bucket)
    until(lambda: "2/10" in (user.folder / "started.txt").read_text(), killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()

    other = User(
        environment_with_extras,
        tmp_path / "elsewhere",
        RAYSENT_CACHE=str(tmp_path / "elsewhere" / "cache"),
    )
    write_books(other.folder / "books")
    write_reviews(other.folder / "reviews.csv")
    other("resume", "s3://store/first", **bucket)
    trials = json.loads(
        other.python(
            "import raysent; print(raysent.Sweep('s3://store/first').trials.reset_index().to_json(orient='records'))",
            **bucket,
        ).splitlines()[-1]
    )
    assert len(trials) == 3
    assert {trial["status"] for trial in trials} <= {"finished", "stopped"}
