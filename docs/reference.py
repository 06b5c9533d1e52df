"""Writes docs/reference.md from the comments in an installed database: `make docs`."""

import sys
import tempfile
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg.rows import dict_row

PAGE = Path(__file__).with_name("reference.md")
SCHEMAS = {
    "expiration": "the engine: settings, runs, batches, failed items, and what drives them",
    "crm": "the domain: leads, bookings, their transitions, the managers' commands",
    "outbox": "the events, append only; slots, retention, replay",
    "chessboard": "what the consumer chessboard keeps",
    "notifications": "what the consumer notifications keeps",
}
ROLES = ("crm_app", "crm_monitor", "crm_runner", "crm_operator", "crm_chessboard", "crm_notifications")

ERRORS: LiteralString = "select sqlstate, name, message, hint from expiration.errors() order by sqlstate"

ROUTINES: LiteralString = """
select
    p.proname as name,
    case p.prokind when 'p' then 'procedure' else 'function' end as kind,
    pg_get_function_arguments(p.oid) as arguments,
    pg_get_function_result(p.oid) as result,
    concat_ws(
        ', ',
        case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
        case when p.proisstrict then 'null in, null out' end,
        case when p.prosecdef then 'runs as crm_owner' end
    ) as traits,
    obj_description(p.oid, 'pg_proc') as comment,
    array(
        select r.name
        from unnest(%(roles)s::text[]) with ordinality as r (name, ordinal)
        where has_function_privilege(r.name, p.oid, 'execute')
        order by r.ordinal
    ) as roles
from pg_proc as p
where p.pronamespace = %(schema)s::regnamespace and p.prorettype <> 'trigger'::regtype
order by p.proname
"""

RELATIONS: LiteralString = """
select
    c.oid,
    c.relname as name,
    case c.relkind when 'v' then 'view' else 'table' end as kind,
    obj_description(c.oid, 'pg_class') as comment
from pg_class as c
where
    c.relnamespace = %(schema)s::regnamespace
    and c.relkind in ('r', 'p', 'v')
    and not c.relispartition
    and obj_description(c.oid, 'pg_class') is not null
    and c.relname not like '%%yoyo%%'
order by c.relkind = 'v', c.relname
"""

COLUMNS: LiteralString = """
select
    a.attname as name,
    format_type(a.atttypid, a.atttypmod) as type,
    a.attnotnull as required,
    coalesce(col_description(a.attrelid, a.attnum), '') as comment
from pg_attribute as a
where a.attrelid = %(oid)s and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""


def render(conn: psycopg.Connection) -> str:
    """The reference page of the objects installed in the database of `conn`, as Markdown."""
    lines = [
        "# Reference",
        "",
        "Written by `make docs` from the comments in the database; do not edit. In psql: `\\df+` and `\\d+`.",
    ]
    with conn.cursor(row_factory=dict_row) as cursor:
        for schema, purpose in SCHEMAS.items():
            lines += ["", f"## Schema `{schema}`: {purpose}", "", "### Functions and procedures"]
            for routine in cursor.execute(ROUTINES, {"schema": schema, "roles": list(ROLES)}).fetchall():
                who = ", ".join(role.removeprefix("crm_") for role in routine["roles"]) or "crm_owner only"
                result = f" returns {routine['result']}" if routine["result"] else ""
                lines += [
                    "",
                    f"#### `{schema}.{routine['name']}`",
                    "",
                    f"{routine['kind']} `({routine['arguments']}){result}`; {routine['traits']}; for: {who}",
                    "",
                    routine["comment"] or "",
                ]
            lines += ["", "### Tables and views"]
            for relation in cursor.execute(RELATIONS, {"schema": schema}).fetchall():
                lines += [
                    "",
                    f"#### `{schema}.{relation['name']}`",
                    "",
                    f"{relation['kind']}. {relation['comment']}",
                    "",
                ]
                columns = cursor.execute(COLUMNS, {"oid": relation["oid"]}).fetchall()
                if relation["kind"] == "view":
                    lines.append("Columns: " + ", ".join(f"`{column['name']}`" for column in columns) + ".")
                    continue
                lines += ["| column | type | what it is |", "| --- | --- | --- |"]
                for column in columns:
                    optional = "" if column["required"] else ", may be null"
                    lines.append(f"| `{column['name']}` | {column['type']}{optional} | {column['comment']} |")
        lines += [
            "",
            "## SQLSTATEs of our own",
            "",
            "All from `expiration.errors()`; `%s` stands for the id, value or name at fault.",
            "",
            "| SQLSTATE | name | message | hint |",
            "| --- | --- | --- | --- |",
        ]
        for error in cursor.execute(ERRORS).fetchall():
            lines.append(f"| {error['sqlstate']} | {error['name']} | {error['message']} | {error['hint']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Installs into a throw-away server and writes the page."""
    from pyrunner.migrations import migrate
    from pyrunner.postgres import PrivateServer, find_binaries

    with tempfile.TemporaryDirectory() as folder:
        server = PrivateServer(find_binaries(), Path(folder) / "server", {"fsync": "off"})
        server.start()
        try:
            migrate(server.dsn())
            with psycopg.connect(server.dsn()) as conn:
                PAGE.write_text(render(conn), encoding="utf-8")
        finally:
            server.destroy()
    sys.stdout.write(f"{PAGE.name}: written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
