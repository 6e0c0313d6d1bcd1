"""Which mutants are not drawn: the rules of `benchmarks/mutants.py`, and none but them."""

from __future__ import annotations

import pytest

from benchmarks import mutants


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('raise DataError(f"{name}: must be there")', "raise DataError(None)", True),
        ('    "must be three; given four"', '    "XXmust be three; given fourXX"', True),
        ('note("one line of text")', 'note("ONE LINE OF TEXT")', True),
        ("zip(rows, names, strict=True)", "zip(rows, names, strict=False)", True),
        ("zip(rows, names, strict=True)", "zip(rows, names, )", True),
        ("zip(rows, names, strict=True)", "zip(rows, strict=True)", False),
        ("cast(int, rows)", "cast(None, rows)", True),
        ("cast(int, rows)", "cast(int, None)", False),
        ('path.read_text(encoding="utf-8")', 'path.read_text(encoding="UTF-8")', True),
        ("with torch_threads(1):", "with torch_threads(2):", True),
        ("self._rows_at_once = 9", "self._rows_at_once = 10", True),
        ('kind = "accuracy"', 'kind = "XXaccuracyXX"', False),
        ("return 100 * rows", "return 101 * rows", False),
        ("if rows > 3:", "if rows >= 3:", False),
        ("names = sorted(names)", "names = None", False),
        ('label = f"{first} and {last}"', "label = 3", False),
    ],
)
def test_wording_and_checks_of_lengths_are_left_out(before, after, expected) -> None:
    """A change is a diff of the function before and after."""
    change = f"--- a.py\n+++ a.py\n@@ -1 +1 @@\n def f(rows):\n-{before}\n+{after}\n return rows"
    assert mutants.is_left_out(change) == expected


def test_tests_of_what_is_changed_are_drawn_upon() -> None:
    """Those of money, scores and ensembles among them."""
    assert {"tests/test_cost.py", "tests/test_probes.py", "tests/test_ensemble.py"} <= {
        *mutants.test_files()
    }
