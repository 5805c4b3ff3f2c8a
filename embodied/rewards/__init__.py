"""The stage that gives steps their reward: a value, its version and its status."""
