"""Other projects' protocols in front of a policy server, each translated in a process of its own."""
