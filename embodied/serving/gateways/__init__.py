"""Other projects' protocols in front of a policy server: translators in processes of their own, and who watches them."""
