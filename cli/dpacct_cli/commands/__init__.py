"""The accounting commands."""
