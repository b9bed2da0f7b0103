"""Audits of the engine with planted neighbors."""
