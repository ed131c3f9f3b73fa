"""ε of what was released: composition and calibration."""
