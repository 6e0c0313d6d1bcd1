"""A fake of sudo: the user of a machine of the lab may do everything; packages are installed already."""

import os
import sys

if "apt-get" in sys.argv:
    sys.exit(0)
os.execvp(sys.argv[1], sys.argv[1:])
