"""Installing into a database, bringing it up to date, and taking everything out again.

Tables, types and indexes come by versioned migrations, which yoyo applies; functions and views are loaded
afresh each time. `migrate` does it from Python, `install_script` writes the same as a script for psql; what
either leaves behind, the other takes up.
"""

from pyrunner.migrations.install import MigrationResult, migrate
from pyrunner.migrations.remove import Kept, UninstallResult, uninstall
from pyrunner.migrations.script import install_script
from pyrunner.migrations.state import (
    InstallationState,
    Installed,
    changed_objects,
    check_installation,
    pending,
    require_installation,
)
from pyrunner.migrations.tree import SqlTreeError, default_sql_root

__all__ = [
    "InstallationState",
    "Installed",
    "Kept",
    "MigrationResult",
    "SqlTreeError",
    "UninstallResult",
    "changed_objects",
    "check_installation",
    "default_sql_root",
    "install_script",
    "migrate",
    "pending",
    "require_installation",
    "uninstall",
]
