"""What others have written, in sentences, labels and names of files, is text to a terminal and never an order."""

from __future__ import annotations

import io
import json
import logging

from rich.live import Live
from rich.table import Table

from raysent.progress import PlainConsole, PrintableFormatter, printable

ORDERS = "\x1b[31m\x1b]0;OWNED\x07\x1b[2J\x9b5m\r\b\x7f\u202e"


def has_orders(text: str) -> bool:
    """Return whether a terminal would obey something in the text."""
    return bool(set(text) & (set(ORDERS) - set("[31m]0;OWNED2J5m")))


def test_printable_text_stays_as_it_is():
    """Tabs, newlines and letters of every script."""
    text = "a\tb\nc é 字 😀 שלום"
    assert printable(text) == text
    assert not has_orders(printable(ORDERS))


def test_console_prints_its_own_styles_only():
    """As plain lines, in tables and in a live view on a terminal."""
    stream = io.StringIO()
    console = PlainConsole(file=stream, force_terminal=True, color_system="standard", width=200)
    table = Table()
    table.add_column(f"a{ORDERS}")
    table.add_row(f"b{ORDERS}")
    with Live(table, console=console, refresh_per_second=0.1):
        console.print(f"c{ORDERS}", style="red", markup=False)
    printed = stream.getvalue()
    assert "\x1b[31m" in printed
    for order in ("\x1b]0;", "\x07", "\x9b", "\x1b[2J", "\x7f", "\u202e"):
        assert order not in printed


def test_search_and_errors_print_no_orders(raysent, tmp_path):
    """Sentences of a corpus, queries, a name in an error; JSON says them with its own escapes."""
    (tmp_path / "text.txt").write_text(
        "".join(f"a cat{ORDERS} sat {n} .\n" for n in range(8)), newline=""
    )
    assert raysent("index", "hash:8", "text.txt", "-o", "index").code == 0
    typed = ["search", "index", f"a cat{ORDERS}"]
    ran = raysent(*typed)
    assert ran.code == 0
    assert "cat" in ran.out
    assert not has_orders(ran.out + ran.err)
    as_json = raysent(*typed, "--json")
    assert not has_orders(as_json.out)
    assert ORDERS[:4] in json.dumps(json.loads(as_json.out), ensure_ascii=False).encode().decode(
        "unicode_escape"
    )
    refused = raysent("encode", f"none{ORDERS}", "text.txt", "-o", "v.npy")
    assert refused.code == 2
    assert not has_orders(refused.err)


def test_logs_hold_no_orders():
    """The form of `--verbose`."""
    record = logging.LogRecord("raysent", logging.INFO, "", 0, "corpus %s", (ORDERS,), None)
    assert not has_orders(PrintableFormatter("%(message)s").format(record))


def test_task_called_mean_is_no_mean_over_tasks(raysent, tmp_path):
    """A table may be called mean.csv; the columns of the printed table have different headings."""
    rows = "".join(f"w{row} a lamp {row},{row % 2}\n" for row in range(40))
    for name in ("mean", "other"):
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    tables = "mean.csv,other.csv"
    ran = raysent("evaluate", "hash:8", "--tasks", tables, "--set", "baselines=false")
    assert ran.code == 0, ran.err
    headings = ran.out.split("\n")[0].split()
    assert headings[-6:] == ["mean", "other", "mean", "of", "all", "tasks"]
