"""GR00T's protocol: messages, the server that answers its clients, and the policy that asks such a server."""
