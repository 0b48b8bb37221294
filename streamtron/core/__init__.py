"""What everything stands on: settings, rows, kernels, the certificate; files, locks, signals."""
