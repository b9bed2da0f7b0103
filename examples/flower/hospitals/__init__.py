"""A Flower app: three hospitals train one model of handwritten digits."""
