"""Lightning modules that distil a model trained on sensitive data into one that can be published."""

import lazy_loader

# What the stub beside this file names is imported on use: a command's help need not wait seconds for Lightning.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
