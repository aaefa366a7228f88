"""``python -m malstrom_py``: the command line where its script is not on the path."""

from malstrom_py.cli.app import main

if __name__ == "__main__":
    main()
