"""Configuration files, one per paper and data set. Installed with the package, so that `--config sweeps/...` always finds them."""
