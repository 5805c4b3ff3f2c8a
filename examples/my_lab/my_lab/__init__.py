"""A task and a robot outside the clone."""
