"""`pyrunner serve`: figures of databases for Prometheus, a status page for people; it changes nothing."""
