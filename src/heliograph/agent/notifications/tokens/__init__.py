"""The registration of this device at its notification router: the machine, its driver, deletion."""
