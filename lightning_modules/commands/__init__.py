"""Commands of `LightningCLI` beside those of Lightning."""
