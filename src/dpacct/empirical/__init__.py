"""What observed attacks show: bounds from below, beside those that accounting proves from above."""
