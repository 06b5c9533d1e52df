"""Latency, rate and cost of the way from the outbox to Kafka: `python -m benchmarks.cdc`."""
