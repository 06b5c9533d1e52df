"""Writes exit-codes.md from the table in pyrunner.errors: `python docs/exit_codes.py`."""

from pathlib import Path

from pyrunner.errors import DatabaseError, ExitCode

PAGE = Path(__file__).parent / "exit-codes.md"

HEAD = """\
# Exit codes of pyrunner

Made from `pyrunner.errors` by `python docs/exit_codes.py`; a test compares the two.
Whatever goes wrong is one sentence on standard error, with a line below it that says what to do.
Results, and nothing else, go to standard output.

| code | meaning |
| ---: | --- |
"""

MIDDLE = """
`pyrunner worker` ends with 0 after a SIGTERM, and with 130 after a second one; `pyrunner serve` with 0.
Neither ends because a cycle fails or a database is away; that stands in its log. A cycle that fails by an
error of the database ends `pyrunner run` with 1, whatever the error; one that could not be started, or lost
its connection, with the code of the error.

## Errors of the database

The SQLSTATE decides, or its longest beginning that stands here. Our own are those of class XP; each has its
message and hint in `select * from expiration.errors()`.

| SQLSTATE | error | code |
| --- | --- | ---: |
"""

TAIL = """\
| any other | DatabaseError | 1 |
"""


def render() -> str:
    """The page."""
    codes = "".join(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)
    kinds = sorted(_all_kinds(DatabaseError), key=lambda kind: (kind.exit_code, kind.sqlstates))
    errors = "".join(
        f"| {', '.join(f'{state}...' if len(state) < 5 else state for state in kind.sqlstates)} "
        f"| {kind.__name__}: {(kind.__doc__ or '').splitlines()[0]} | {kind.exit_code.value} |\n"
        for kind in kinds
    )
    return HEAD + codes + MIDDLE + errors + TAIL


def _all_kinds(kind: type[DatabaseError]) -> set[type[DatabaseError]]:
    found = set(kind.__subclasses__())
    return found.union(*(_all_kinds(one) for one in found))


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
