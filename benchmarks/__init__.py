"""Speed and memory beside hand-written loops: `python -m benchmarks`, or `make bench`."""
