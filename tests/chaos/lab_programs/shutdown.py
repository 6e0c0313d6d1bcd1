"""A fake of shutdown: AWS terminates a machine that shuts down."""

import os
from pathlib import Path

(Path(os.environ["LAB_FOLDER"]) / "machines" / os.environ["LAB_MACHINE"] / "shutdown").touch()
