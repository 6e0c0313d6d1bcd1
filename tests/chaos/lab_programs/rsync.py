"""A fake of rsync: copies a file or a folder to a machine of the lab, whose home is a folder of this computer."""

import json
import os
import shutil
import sys
from pathlib import Path

LAB = Path(os.environ["LAB_FOLDER"])
HERE = os.environ.get("LAB_MACHINE", "")
HOME = "/home/ubuntu"
WITH_VALUE = ("--rsh", "-e", "--exclude", "--filter")


def on_machine(path: str, name: str) -> str:
    """Return where a path of a machine is on this computer; a path of no machine stays."""
    if not name:
        return path
    home = str(LAB / "machines" / name / "home")
    if path.startswith("~"):
        return home + path[1:]
    if path.startswith(HOME):
        return home + path[len(HOME) :]
    return path if path.startswith("/") else f"{home}/{path}"


def main() -> int:
    """Copy."""
    words, positions = sys.argv[1:], []
    while words:
        word = words.pop(0)
        if word in WITH_VALUE:
            words.pop(0)
        elif not word.startswith("-"):
            positions.append(word)
    source, target = positions
    address, _, path = target.partition(":")
    known = json.loads((LAB / "machines.json").read_text())
    address = address.partition("@")[2]
    name = next((name for name, addresses in known.items() if address in addresses), "")
    if not name:
        return 255
    start, end = on_machine(source, HERE), Path(on_machine(path, name))
    if start.endswith("/"):
        shutil.copytree(start, end, dirs_exist_ok=True)
    elif Path(start).is_dir():
        shutil.copytree(start, end / Path(start).name, dirs_exist_ok=True)
    else:
        if path.endswith("/") or end.is_dir():
            end = end / Path(start).name
        end.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(start, end)
    return 0


if __name__ == "__main__":
    sys.exit(main())
