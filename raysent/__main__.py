"""`python -m raysent`: the same as `raysent`."""

from raysent.cli import main

if __name__ == "__main__":
    main()
