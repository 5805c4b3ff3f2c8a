"""The policy host and the servers in front of it."""
