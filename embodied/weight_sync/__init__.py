"""Transport of weight versions between learners, servers and edges."""
