"""Leads and bookings that expire inside PostgreSQL: installation, runner, operation."""

__version__ = "0.4.0"
