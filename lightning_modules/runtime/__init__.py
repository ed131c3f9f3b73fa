"""Runtime support: folders, configuration files, seeds, processes, loggers and figures."""
