"""`python -m pyrunner` is `pyrunner`."""

from pyrunner.cli import main

if __name__ == "__main__":
    main()
