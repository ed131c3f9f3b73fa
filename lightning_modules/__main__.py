"""`python -m lightning_modules` is the same as `LightningCLI`."""

from lightning_modules.cli import main

if __name__ == "__main__":
    main()
