"""Everything a run needs besides its method: folders, configuration files, seeds, loggers, figures."""
