"""How weight versions travel between learners, servers and edges."""
