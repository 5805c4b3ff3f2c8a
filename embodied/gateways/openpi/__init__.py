"""Protocol of openpi: messages, a server for its clients, and a policy that asks its servers."""
