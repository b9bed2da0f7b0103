"""The engine: rounds in the one order that keeps every promise."""
