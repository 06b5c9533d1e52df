"""`python -m pyrunner.demo` is `pyrunner demo`."""

import sys

from pyrunner.cli import main

sys.argv[1:1] = ["demo"]
main()
