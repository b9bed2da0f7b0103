"""Trainers: many clients of a cohort, side by side or one by one, each alone with its data."""
