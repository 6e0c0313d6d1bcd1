"""Input that coverage guides, by Atheris, for the readers of JSON, YAML, overrides and constraints.

    pip install atheris
    python -m benchmarks.coverage_fuzz [--seconds 150]

Every input must give a value or the one line of an error, within 5 s and 1.5 GB. Atheris prints the number of inputs,
the slowest of them and the peak of memory, and ends with the input that fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

# The first byte of an input chooses the reader.
EXAMPLES = (
    b'0{"a": [1, 2.5, "x"]}',
    b"1a: {b: [1, 2]}\nc: &x 3\nd: *x\n",
    b"2encoder.hidden_size=[1, 2]",
    b"3training.batch_size in (10, 100) and encoder.hidden_size * 2 < 20",
)
WORDS = ("null", "1e400", "NaN", "&a ", "*a", "!!python", r"\\ud83d", "training.batch_size", " in ", "not ", "**", "<<")
VALUES: dict[str, Any] = {"training": {"batch_size": 100}, "encoder": {"hidden_size": 8}}


def main() -> None:
    """Fuzz until the time is over or an input fails."""
    try:
        import atheris  # noqa: PLC0415 - optional
    except ImportError:
        sys.exit("error: needs atheris: pip install atheris")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=150)
    seconds = parser.parse_args().seconds
    with atheris.instrument_imports(include=["raysent"]):
        from raysent.config import parse_override, parse_yaml  # noqa: PLC0415 - instrumented
        from raysent.errors import RaysentError  # noqa: PLC0415 - as above
        from raysent.reading import parse_json  # noqa: PLC0415 - as above
        from raysent.sweeps.space.constraints import evaluate_constraint, parse_constraint  # noqa: PLC0415 - as above

    def read(data: bytes) -> None:
        text = data[1:].decode("utf-8", "surrogateescape")
        readers = (
            lambda: parse_json(data[1:]),
            lambda: parse_yaml(text),
            lambda: parse_override(text),
            lambda: evaluate_constraint(parse_constraint(text), VALUES),
        )
        place = data[0] % len(readers) if data else 0
        try:
            readers[place]()
        except RaysentError:
            return
        except ValueError:  # `parse_json` raises it; its callers add the file
            if place:
                raise

    with tempfile.TemporaryDirectory() as folder:
        corpus, words = Path(folder, "corpus"), Path(folder, "words")
        corpus.mkdir()
        for number, example in enumerate(EXAMPLES):
            (corpus / str(number)).write_bytes(example)
        words.write_text("".join(f'"{word}"\n' for word in WORDS))
        limits = [f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=1500", "-max_len=400"]
        atheris.Setup([sys.argv[0], *limits, "-print_final_stats=1", f"-dict={words}", str(corpus)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
