"""Numerical routines that know no privacy."""
