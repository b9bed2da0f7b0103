"""Membership attacks on models with and without privacy."""
