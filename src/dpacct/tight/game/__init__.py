"""The adaptive game of fixed-size sampling: every round is a triangle, chosen anew."""
