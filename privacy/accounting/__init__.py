"""ε of what was released: composition, calibration, and the cost of choosing the best of several runs."""
