"""SQL that both ways of installing execute, `migrate` and the script."""

from typing import Final, LiteralString

import pyrunner
from pyrunner.migrations.tree import SqlTree, checksum, take_apart

__all__ = ["MIGRATION_PATH", "completed", "dollar_quoted", "quoted", "sources", "terminated"]

MIGRATION_PATH: Final[LiteralString] = "set local search_path = expiration, pg_temp"


def quoted(text: str) -> str:
    """The text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def dollar_quoted(text: str, tag: str) -> str:
    """The text between dollar quotes that do not occur in it."""
    while f"${tag}$" in text:
        tag += "_"
    return f"${tag}${text}${tag}$"


def terminated(sql: str) -> str:
    """The text with a semicolon at its end, as psql needs it."""
    code = take_apart(sql).text.rstrip()
    return f"{sql}\n;" if code and not code.endswith(";") else sql


def sources(tree: SqlTree) -> str:
    """Puts the files of functions and views, in their order, into expiration.installed_file for load.sql."""
    pieces = ["-- position 0 marks a file that is gone\nupdate expiration.installed_file set position = 0;\n"]
    units = [
        (source.path, part, unit)
        for source in tree.sources
        for part, unit in enumerate(source.units, start=1)
    ]
    for position, (path, part, unit) in enumerate(units, start=1):
        pieces.append(
            "insert into expiration.installed_file (file, part, position, kind, checksum, source)\n"
            f"values ({quoted(path)}, {part}, {position}, {quoted(unit.kind)},\n"
            f"    {quoted(checksum(unit.source))},\n"
            f"{dollar_quoted(unit.source, 'source')})\n"
            "on conflict (file, part) do update set position = excluded.position, kind = excluded.kind,"
            " checksum = excluded.checksum, source = excluded.source;\n"
        )
    pieces.append("delete from expiration.installed_file where position = 0;\n")
    return "\n".join(pieces)


def completed(tree: SqlTree) -> str:
    """Writes down that this version is installed."""
    values = [pyrunner.__version__, max(tree.migrations), tree.checksum]
    version, last_migration, of_files = map(quoted, values)
    return (
        "insert into expiration.installation"
        " (version, installed_at, installed_by, last_migration, checksum)\n"
        f"values ({version}, clock_timestamp(), session_user, {last_migration}, {of_files})\n"
        "on conflict (version) do update set\n"
        "    installed_at = excluded.installed_at, installed_by = excluded.installed_by,\n"
        "    last_migration = excluded.last_migration, checksum = excluded.checksum;\n"
    )
