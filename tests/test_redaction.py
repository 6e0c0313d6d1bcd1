"""No user, password or token of an address is written or printed."""

from __future__ import annotations

import time

import pytest

from raysent.progress import printable_message
from raysent.redaction import without_secrets, without_secrets_in


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://ann:pw@host", "http://host"),
        ("mlflow:http://ann:pw@host:5000/a", "mlflow:http://host:5000/a"),
        ("https://pw@host/a?b=c", "https://host/a?b=c"),
        ("postgresql+psycopg2://ann:pw@host/db", "postgresql+psycopg2://host/db"),
        ("http://ann:p@pw@host/x", "http://host/x"),
        ("http://ann:p/pw@host/x", "http://host/x"),
        ("http://ann:p?pw#pw@host", "http://host"),
        ("http://ann:p'pw@host", "http://host"),
        ("http://:pw@[::1]:80/x", "http://[::1]:80/x"),
        ("track=[mlflow:http://a:pw@h,mlflow:http://b:pw@g]", "track=[mlflow:http://h,mlflow:http://g]"),
        ('["http://a:pw@h", "x@y"]', '["http://h", "x@y"]'),
        ("see http://a:pw@h, then b@c", "see http://h, then b@c"),
        ("http://h/a?token=pw", "http://h/a"),
        ("http://h/a?x=1&api_key=pw&y=2", "http://h/a?x=1&y=2"),
        ("http://h/a?API-KEY=pw&y=2#z", "http://h/a?y=2#z"),
        ("https://h/b?X-Amz-Signature=pw&X-Amz-Credential=pw&v=1", "https://h/b?v=1"),
        ("postgresql://h/db?user=ann&password=pw", "postgresql://h/db"),
        ("https://h/#access_token=pw", "https://h/"),
    ],
)  # fmt: skip
def test_secrets_of_an_address_are_taken_out(text, shown):
    """The rest of the address and of the text stays."""
    assert without_secrets(text) == shown
    assert printable_message(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/runs/a@b",
        "http://host:8000/a@b",
        "http://[::1]:80/a@b",
        "ann@host:folder",
        "--set training.batch_size=50",
        "http://h/?tokens_per_s",
        "sqlite:///mlflow.db",
        "search.token=5",
        "C:\\a@b",
    ],
)
def test_what_is_no_secret_stays(text):
    """Paths with `@`, ports, settings."""
    assert without_secrets(text) == text


def test_values_are_cleaned_at_every_depth():
    """As those of a space; numbers and None stay."""
    values = {"trackers": [{"uri": "http://a:pw@h"}, 3, None], "http://a:pw@k": True}
    assert without_secrets_in(values) == {
        "trackers": [{"uri": "http://h"}, 3, None],
        "http://k": True,
    }


def test_long_texts_take_no_longer_than_they_are_long():
    """No text of a stranger keeps the printing of an error."""
    parts = ("http://", "http://a:b", "?token", "?token=", ":", "a", "'")
    for text in (part * 3_000 for part in parts):
        begun = time.process_time()
        without_secrets(f"@=http://{text}")
        assert time.process_time() - begun < 10
