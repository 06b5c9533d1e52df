"""The demo: a PostgreSQL of its own, a made-up CRM in it, both jobs at work, and what came of it."""

from pyrunner.demo.command import demo

__all__ = ["demo"]
