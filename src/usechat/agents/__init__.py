"""What runs: each file drives one kind of agent and hands on its events."""
