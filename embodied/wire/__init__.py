"""ZeroMQ messages: a msgpack header and raw array frames, with deadlines and heartbeats."""
