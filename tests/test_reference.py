"""The reference page is as true as the comments that it is made from."""

import importlib.util
from pathlib import Path

from tests.servers import Database

FOLDER = Path(__file__).parent.parent / "docs"


def test_the_reference_page_is_what_the_comments_say(db: Database) -> None:
    spec = importlib.util.spec_from_file_location("reference", FOLDER / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    with db.connect() as conn:
        page = reference.render(conn)
    assert page == (FOLDER / "reference.md").read_text(encoding="utf-8"), "write it anew by: make docs"
