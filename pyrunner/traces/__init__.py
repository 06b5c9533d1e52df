"""Runs as traces: made from the tables once a run is over, whoever drove it, and sent by OTLP."""
