"""Protocol of GR00T: messages, key mapping, a server for its clients, and a policy that asks its servers."""
