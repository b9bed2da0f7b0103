"""A Flower app: three hospitals, one model of handwritten digits, noise by the hospitals."""
