"""The SQL files: what stands where, in which order functions and views can be made, checksums of it all."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from pyrunner.errors import PyrunnerError

__all__ = [
    "SCHEMAS",
    "Migration",
    "SourceFile",
    "SqlTree",
    "SqlTreeError",
    "Unit",
    "default_sql_root",
    "load_order",
]

SCHEMAS: Final = ("crm", "outbox", "expiration", "chessboard", "notifications")

Kind = Literal["routine", "view", "trigger"]

_LEXEME: Final = re.compile(
    r"""
    (?P<comment> --[^\n]* )
  | (?P<opening> /\* )
  | (?P<literal> \b[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' )
  | (?P<quoted> "(?:[^"]|"")*" )
  | (?P<body> (?<![\w$]) \$(?P<tag>(?:[^\W\d]\w*)?)\$ (?P<inside>.*?) \$(?P=tag)\$ )
    """,
    re.VERBOSE | re.DOTALL,
)
_NESTING: Final = re.compile(r"/\*|\*/")
_REFERENCE: Final = re.compile(rf"(?<![\w$.])\"?({'|'.join(SCHEMAS)})\"?\s*\.\s*\"?(\w+)", re.IGNORECASE)
_MADE: Final = re.compile(
    r"\bcreate\s+or\s+replace\s+(?P<kind>function|procedure|view)\s+(?P<name>\w+\s*\.\s*\w+)", re.IGNORECASE
)
_TRIGGER: Final = re.compile(r"\bcreate\s+(?:or\s+replace\s+)?(?:constraint\s+)?trigger\b", re.IGNORECASE)
_LANGUAGE: Final = re.compile(r"\blanguage\s+'?(\w+)", re.IGNORECASE)


class SqlTreeError(PyrunnerError):
    """The SQL files themselves are wrong; the message names the file."""


def default_sql_root() -> Path:
    """The SQL that belongs to this program: inside an installed wheel, beside the package in a checkout."""
    package = Path(str(files("pyrunner")))
    return next(
        (place for place in (package / "sql", package.parent / "sql") if (place / "bootstrap.sql").is_file()),
        package / "sql",
    )


def checksum(*texts: str) -> str:
    """SHA-256 of the texts, in hex."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


@dataclass(frozen=True)
class Code:
    """SQL taken apart.

    Attributes:
        text: as long as the original; comments, literals and bodies are blanked out.
        literals: what stood between quotes.
        bodies: what stood between dollar quotes.
    """

    text: str
    literals: tuple[str, ...]
    bodies: tuple[str, ...]


def take_apart(sql: str) -> Code:
    """Separates code from comments, which may be nested, from literals and from bodies."""
    pieces: list[str] = []
    literals: list[str] = []
    bodies: list[str] = []
    position = 0
    while found := _LEXEME.search(sql, position):
        pieces.append(sql[position : found.start()])
        end = found.end()
        match found.lastgroup:
            case "opening":
                depth = 1
                while depth and (nested := _NESTING.search(sql, end)):
                    depth += 1 if nested.group() == "/*" else -1
                    end = nested.end()
                end = len(sql) if depth else end
            case "literal":
                literals.append(found.group())
            case "body":
                bodies.append(found.group("inside"))
        blank = found.group() if found.lastgroup == "quoted" else re.sub(r"\S", " ", sql[found.start() : end])
        pieces.append(blank)
        position = end
    pieces.append(sql[position:])
    return Code("".join(pieces), tuple(literals), tuple(bodies))


def _names(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(
        f"{schema}.{name}".lower() for text in texts for schema, name in _REFERENCE.findall(text)
    )


@dataclass(frozen=True)
class Unit:
    """A piece of a file that is loaded in one go.

    Attributes:
        kind: "trigger" for what follows the first `create trigger` of a file, else what the file makes.
        source: the SQL text.
    """

    kind: Kind
    source: str


@dataclass(frozen=True)
class SourceFile:
    """A file of sql/functions; it makes the function, procedure or view that it is named after.

    Attributes:
        path: below sql/functions, "crm/expire_leads.sql".
        source: its text.
    """

    path: str
    source: str

    @property
    def name(self) -> str:
        """The object's qualified name, "crm.expire_leads"."""
        return self.path.removesuffix(".sql").replace("/", ".")

    @cached_property
    def _code(self) -> Code:
        return take_apart(self.source)

    @cached_property
    def _kinds(self) -> set[str]:
        """The kinds of object that the file makes under its name."""
        return {
            found["kind"].lower()
            for found in _MADE.finditer(self._code.text)
            if "".join(found["name"].split()).lower() == self.name
        }

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The file's text cut before its first trigger."""
        if not self._kinds:
            raise SqlTreeError(
                f"sql/functions/{self.path} makes no {self.name}: it must hold `create or replace function`, "
                f"`procedure` or `view` of that name."
            )
        kind: Kind = "view" if self._kinds == {"view"} else "routine"
        trigger = _TRIGGER.search(self._code.text)
        if trigger is None:
            return (Unit(kind, self.source),)
        cut = trigger.start()
        if late := _MADE.search(self._code.text, cut):
            raise SqlTreeError(
                f"sql/functions/{self.path} makes {late['name']} after a trigger: triggers come last."
            )
        return (Unit(kind, self.source[:cut]), Unit("trigger", self.source[cut:]))

    @cached_property
    def needs(self) -> frozenset[str]:
        """Names that must exist when the file is loaded.

        PostgreSQL looks at the code of views, defaults and SQL functions when they are made.
        """
        return _names([self._code.text, *(() if self._is_plpgsql else self._body_texts)]) - {self.name}

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Names that had better exist: those in plpgsql bodies, which are looked up late, and in literals."""
        bodies = [take_apart(body) for body in self._code.bodies]
        literals = [*self._code.literals, *(literal for body in bodies for literal in body.literals)]
        return _names([*self._body_texts, *literals]) - self.needs - {self.name}

    @property
    def _is_plpgsql(self) -> bool:
        return {language.lower() for language in _LANGUAGE.findall(self._code.text)} == {"plpgsql"}

    @cached_property
    def _body_texts(self) -> list[str]:
        return [take_apart(body).text for body in self._code.bodies]


def load_order(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """The files in an order in which they can be loaded: what a file needs comes before it.

    Raises:
        SqlTreeError: files need each other in a circle in which every link is needed at loading.
    """
    by_name = {source.name: source for source in sorted(sources, key=lambda source: source.path)}
    needs = {name: set(source.needs & by_name.keys()) for name, source in by_name.items()}
    wishes = {name: set(source.mentions & by_name.keys()) for name, source in by_name.items()}
    while True:
        graph = {name: sorted(needs[name] | wishes[name]) for name in by_name}
        try:
            return [by_name[name] for name in TopologicalSorter(graph).static_order()]
        except CycleError as error:
            circle: list[str] = error.args[1]
            links = list(zip(circle[1:], circle, strict=False))
            # a wish may stay unfulfilled; one is given up at a time, so that as many as can be are kept
            link = next(((name, wish) for name, wish in links if wish in wishes[name]), None)
            if link is None:
                chain = " -> ".join(reversed(circle))
                raise SqlTreeError(f"The SQL files need each other in a circle: {chain}.") from None
            wishes[link[0]].discard(link[1])


@dataclass(frozen=True)
class Migration:
    """A versioned migration.

    Attributes:
        path: its file.
        source: the file's text.
    """

    path: Path
    source: str

    @property
    def id(self) -> str:
        """The file's name without its ending, as yoyo keeps it."""
        return self.path.stem

    @property
    def hash(self) -> str:
        """What yoyo keys its rows by: SHA-256 of the id."""
        return checksum(self.id)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the text; yoyo itself does not notice that an applied file was edited."""
        return checksum(self.source)


@dataclass(frozen=True)
class SqlTree:
    """Everything below one sql/ folder; a file is read when it is first asked for.

    Args:
        root: the folder.
    """

    root: Path = field(default_factory=default_sql_root)

    @cached_property
    def bootstrap(self) -> str:
        """Roles and schemas."""
        return _text(self.root / "bootstrap.sql")

    @cached_property
    def migrations(self) -> Mapping[str, Migration]:
        """By id, in the order in which they are applied: by name."""
        paths = sorted((self.root / "migrations").glob("*.sql"))
        found = [Migration(path, _text(path)) for path in paths if not path.name.endswith(".rollback.sql")]
        if not found:
            raise SqlTreeError(
                f"There are no migrations in {self.root / 'migrations'}.", hint="Install pyrunner again."
            )
        return {migration.id: migration for migration in found}

    @cached_property
    def _files(self) -> list[SourceFile]:
        folder = self.root / "functions"
        return [
            SourceFile(path.relative_to(folder).as_posix(), _text(path))
            for path in sorted(folder.rglob("*.sql"))
        ]

    @cached_property
    def sources(self) -> list[SourceFile]:
        """Files of sql/functions in the order in which they are loaded."""
        for source in self._files:
            if source.path.count("/") != 1 or source.path.split("/")[0] not in SCHEMAS:
                raise SqlTreeError(
                    f"sql/functions/{source.path} is out of place: it must stand in its schema's folder, "
                    f"which is one of {', '.join(SCHEMAS)}."
                )
        return load_order(self._files)

    @cached_property
    def grants(self) -> str:
        """Privileges, granted after everything else."""
        return _text(self.root / "grants.sql")

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of what every installation loads afresh: functions, views, grants."""
        return checksum(
            self.grants, *(text for source in self._files for text in (source.path, source.source))
        )

    def check(self) -> None:
        """Reads everything.

        Raises:
            SqlTreeError: a file is missing or cannot be used.
        """
        _ = self.bootstrap, self.migrations, [source.units for source in self.sources], self.checksum


def sql_tree(root: Path | None) -> SqlTree:
    """The files below `root`, or those that belong to this program."""
    return SqlTree() if root is None else SqlTree(root)


def _text(path: Path) -> str:
    try:
        # line ends are those of the checkout, and must not matter
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SqlTreeError(
            f"The SQL file {path} cannot be read: {reason}.", hint="Install pyrunner again."
        ) from None
