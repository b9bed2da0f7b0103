"""Calibration: the noise, rounds or rate that meet a goal."""
